"""`benthic inspect`: what a checkpoint or a released model consists of, without loading weights."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from benthic.cli.options import BUNDLED

if TYPE_CHECKING:
    from benthic.models.checkpoint import Inspection


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="A checkpoint folder, a bundled name, deepseek-v4-flash or deepseek-v4-pro.", metavar="MODEL"
        ),
    ] = BUNDLED,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print sizes, counts and bytes of a model."""
    from benthic.models.checkpoint import inspect as inspect_checkpoint

    found = inspect_checkpoint(model)
    if as_json:
        typer.echo(json.dumps(found.to_json(tensors=tensors), indent=2))
        return
    _print_summary(found)
    if tensors:
        _print_tensors(found)


def _print_summary(found: "Inspection") -> None:
    config = found.config
    rows = {
        "model": found.name,
        "layers": f"{found.num_layers} (compression {_runs(config.compress_ratios[: found.num_layers])})",
        "hidden size": f"{config.hidden_size:,}",
        "heads": f"{config.num_attention_heads} x {config.head_dim}",
        "routed experts": f"{config.n_routed_experts}, {config.num_experts_per_tok} a token",
        "shared experts": f"{config.n_shared_experts}",
        "vocabulary": f"{config.vocab_size:,}",
        "context": f"{config.max_position_embeddings:,}",
        "parameters": f"{found.parameters:,} ({found.active_parameters:,} work on each token)",
        "MTP parameters": f"{found.mtp_parameters:,}",
        "tensors": f"{found.num_tensors:,}",
        "bytes": f"{found.num_bytes:,} ({found.num_bytes / 1e9:.2f} GB)",
    }
    for name, value in rows.items():
        typer.echo(f"{name:<16}{value}")
    for dtype, num_bytes in found.bytes_by_dtype.items():
        typer.echo(f"  {dtype:<14}{num_bytes:,} bytes")


def _runs(ratios: tuple[int, ...]) -> str:
    """`0 x2, 4 x3, 128 x3`: how many layers have each ratio."""
    return ", ".join(f"{ratio} x{ratios.count(ratio)}" for ratio in sorted(set(ratios)))


def _print_tensors(found: "Inspection") -> None:
    width = max(len(spec.name) for spec in found.tensors)
    for spec in found.tensors:
        shape = "x".join(map(str, spec.shape)) or "scalar"
        typer.echo(f"{spec.name:<{width}}  {spec.dtype:<8} {shape:>20} {spec.bytes:>16,}")
