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
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint in the target folder.")] = False,
) -> None:
    """Rewrite a checkpoint in another layout or number format."""
    from typing import get_args

    from benthic.errors import ConfigError
    from benthic.models.checkpoint import convert as convert_checkpoint
    from benthic.models.checkpoint.table import Layout, Weights
    from benthic.models.checkpoint.write import MAX_SHARD_BYTES

    for name, value, known in (("layout", layout, get_args(Layout)), ("weights", weights, get_args(Weights))):
        if value not in known:
            raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    written = convert_checkpoint(
        source,
        target,
        layout=layout,  # type: ignore[arg-type]
        weights=weights,  # type: ignore[arg-type]
        overwrite=overwrite,
        max_shard_bytes=MAX_SHARD_BYTES if max_shard_bytes is None else max_shard_bytes,
    )
    typer.echo(f"wrote {written}")
