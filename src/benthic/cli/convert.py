"""`benthic convert`: a checkpoint to another layout or number format."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[str, typer.Argument(help="A checkpoint folder, or the name of a bundled model.")],
    target: Annotated[Path, typer.Argument(help="The folder to write.")],
    layout: Annotated[str, typer.Option(help="official or hf (as transformers names tensors).")] = "official",
    weights: Annotated[str, typer.Option(help="official (FP4 experts, FP8), fp8, bf16 or fp32.")] = "official",
    max_shard_bytes: Annotated[
        int | None, typer.Option(help="Split the weights from this size on.", show_default=False)
    ] = None,
) -> None:
    """Rewrite a checkpoint in another layout or number format."""
    from typing import get_args

    from benthic.errors import ConfigError
    from benthic.models.checkpoint import convert as convert_checkpoint
    from benthic.models.checkpoint.table import Layout, Weights

    for name, value, known in (("layout", layout, get_args(Layout)), ("weights", weights, get_args(Weights))):
        if value not in known:
            raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    size = {} if max_shard_bytes is None else {"max_shard_bytes": max_shard_bytes}
    written = convert_checkpoint(source, target, layout=layout, weights=weights, **size)  # type: ignore[arg-type]
    typer.echo(f"wrote {written}")
