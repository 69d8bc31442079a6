"""`benthic inspect`: what a checkpoint or a released model consists of, without loading weights."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from benthic.cli.options import BUNDLED

if TYPE_CHECKING:
    from benthic.models.checkpoint import Inspection

LONGEST_LINE = 2000
"""Characters of one list of tensors or files: what lacks a shard may lack thousands of tensors."""


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="A checkpoint folder, a bundled name, or a released model's: deepseek-v3.2, deepseek-v4-flash, ...",
            metavar="MODEL",
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
    else:
        _print_summary(found)
        if tensors:
            _print_tensors(found)
    if not found.is_whole:
        raise typer.Exit(1)


def _print_summary(found: "Inspection") -> None:
    config = found.config
    width = config.qk_nope_head_dim + config.qk_rope_head_dim if config.is_latent else config.head_dim
    rows = {
        "model": found.name,
        "family": found.family,
        "layers": f"{found.num_layers}: " + "; ".join(f"{count} x {kind}" for kind, count in found.layers.items()),
        "hidden size": f"{config.hidden_size:,}",
        "heads": f"{config.num_attention_heads} x {width}",
        "kv entry": f"{config.entry_dim} numbers a token or block and layer",
        "routed experts": f"{config.n_routed_experts}, {config.num_experts_per_tok} a token",
        "shared experts": f"{config.n_shared_experts}",
        "vocabulary": f"{config.vocab_size:,}",
        "context": f"{config.max_position_embeddings:,}",
        "parameters": f"{found.parameters:,} ({found.active_parameters:,} work on each token)",
        **{f"  {part}": f"{count:,}" for part, count in found.parts.items()},
        "tensors": f"{found.num_tensors:,}",
        "bytes": f"{found.num_bytes:,} ({found.num_bytes / 1e9:.2f} GB)",
        **{f"  {dtype}": f"{num_bytes:,}" for dtype, num_bytes in found.bytes_by_dtype.items()},
    }
    for name, value in rows.items():
        typer.echo(f"{name:<21}{value}")
    _print_problems(found)


def _print_problems(found: "Inspection") -> None:
    from benthic.models.checkpoint.listing import listing

    lines = [("unusable", text) for text in found.unusable]
    for title, names in (("missing", found.missing), ("unknown", found.unknown)):
        lines.append((f"{title} {len(names):,}", listing(names)))
    lines += [("misshapen", f"{name} {what}") for name, what in found.misshapen.items()]
    for title, text in lines:
        if len(text) > LONGEST_LINE:
            text = f"{text[:LONGEST_LINE]} ... (--json names every one)"
        if text:
            typer.echo(f"{title:<21}{text}")
    if not found.is_whole:
        typer.echo("this folder does not load: its files do not hold the model that config.json describes")


def _print_tensors(found: "Inspection") -> None:
    width = max((len(spec.name) for spec in found.tensors), default=0)
    for spec in found.tensors:
        shape = "x".join(map(str, spec.shape)) or "scalar"
        typer.echo(f"{spec.name:<{width}}  {spec.dtype:<8} {shape:>20} {spec.bytes:>16,}")
