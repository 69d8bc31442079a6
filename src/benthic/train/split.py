"""Which optimiser moves which parameter, and which matrices a parameter consists of: one table, keyed by name.

The first row whose pattern matches decides. A parameter that no row matches is an error: a new parameter must be
given its place here, knowingly. Buffers (hash tables, the router's correction bias) are moved by no optimiser.
Sources: paper 2.4 and 4.2.2 for Muon against AdamW; training.md 2.1 for the cases that the paper leaves open: sinks
and `ape` are biases in spirit and go to AdamW, router and mHC projections are matrices and go to Muon.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from benthic.errors import ConfigError
from benthic.models.config import ModelConfig

Optimiser = Literal["muon", "adamw"]
View = Literal["whole", "expert_pairs", "experts", "groups", "none"]

_BLOCK = r"(?:layers\.\d+|mtp\.\d+)"
# pattern, optimiser, matrix view, weight decay. Gains, sinks and mHC constants are not pulled towards zero:
# zero is not their neutral value.
_TABLE: tuple[tuple[str, Optimiser, View, bool], ...] = (
    (r"(?:embed|head)\.weight", "adamw", "none", True),
    (r"(?:.*[._])?norm\.weight", "adamw", "none", False),
    (r"mtp\.\d+\.[eh]norm\.weight", "adamw", "none", False),
    (rf"(?:{_BLOCK}\.)?hc_(?:attn|ffn|head)_(?:base|scale)", "adamw", "none", False),
    (rf"{_BLOCK}\.attn\.attn_sink", "adamw", "none", False),
    (rf"{_BLOCK}\.attn\.(?:indexer\.)?compressor\.ape", "adamw", "none", False),
    (rf"(?:{_BLOCK}\.)?hc_(?:attn|ffn|head)_fn", "muon", "whole", True),
    (rf"{_BLOCK}\.attn\.(?:wq|wq_a|wq_b|wkv|wkv_a|wkv_b|wo|wo_b)\.weight", "muon", "whole", True),
    (rf"{_BLOCK}\.attn\.wo_a\.weight", "muon", "groups", True),
    (rf"{_BLOCK}\.attn\.(?:indexer\.)?compressor\.(?:wkv|wgate)\.weight", "muon", "whole", True),
    (rf"{_BLOCK}\.attn\.indexer\.(?:wq_b|wk|weights_proj)\.weight", "muon", "whole", True),
    (rf"{_BLOCK}\.attn\.indexer\.k_norm\.bias", "adamw", "none", False),
    (rf"{_BLOCK}\.ffn\.gate\.weight", "muon", "whole", True),
    (rf"{_BLOCK}\.ffn\.(?:shared_experts\.)?w[123]\.weight", "muon", "whole", True),
    (rf"{_BLOCK}\.ffn\.experts\.w13", "muon", "expert_pairs", True),
    (rf"{_BLOCK}\.ffn\.experts\.w2", "muon", "experts", True),
    (r"mtp\.\d+\.(?:[eh]|eh)_proj\.weight", "muon", "whole", True),
)


@dataclass(frozen=True, slots=True)
class Placement:
    """A parameter's place: `matrices` is (count, n, m), the independent matrices that Muon sees; None for AdamW."""

    name: str
    shape: tuple[int, ...]
    optimiser: Optimiser
    matrices: tuple[int, int, int] | None
    decay: bool


def split_parameters(parameters: Iterable[tuple[str, nn.Parameter]], config: ModelConfig) -> tuple[Placement, ...]:
    """Places every parameter, in the order given. Raises ConfigError naming all parameters that no row matches."""
    placements, unknown = [], []
    for name, parameter in parameters:
        row = next((row for row in _TABLE if re.fullmatch(row[0], name)), None)
        if row is None:
            unknown.append(name)
            continue
        shape = tuple(parameter.shape)
        placements.append(Placement(name, shape, row[1], _matrices(name, shape, row[2], config.o_groups), row[3]))
    if unknown:
        raise ConfigError(
            f"no optimiser is known for {', '.join(unknown)}; every parameter needs a row in benthic/train/split.py"
        )
    return tuple(placements)


def format_split(placements: Iterable[Placement]) -> str:
    """The table as text, one line for all parameters that differ only in a layer's number."""
    lines: dict[tuple[str, str, str, str], list[int]] = {}
    for p in placements:
        matrices = "x".join(map(str, p.matrices)) if p.matrices else "-"
        key = (re.sub(r"\.\d+\.", ".*.", p.name), p.optimiser, matrices, "yes" if p.decay else "no")
        counts = lines.setdefault(key, [0, 0])
        counts[0] += 1
        counts[1] += math.prod(p.shape)
    rows = [("parameter", "optimiser", "matrices", "decay", "tensors", "elements")]
    rows += [(*key, str(count), f"{elements:,}") for key, (count, elements) in lines.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "\n".join(
        "  ".join(row[i].rjust(widths[i]) if i > 3 else row[i].ljust(widths[i]) for i in range(6)) for row in rows
    )


def _matrices(name: str, shape: tuple[int, ...], view: View, o_groups: int) -> tuple[int, int, int] | None:
    match view:
        case "none":
            return None
        case "whole":
            assert len(shape) == 2, f"{name} {shape} is not a matrix"
            return (1, shape[0], shape[1])
        case "groups":
            assert len(shape) == 2 and shape[0] % o_groups == 0, f"{name} {shape} does not hold {o_groups} groups"
            return (o_groups, shape[0] // o_groups, shape[1])
        case "experts":
            assert len(shape) == 3, f"{name} {shape} is not a stack of matrices"
            return (shape[0], shape[1], shape[2])
        case "expert_pairs":
            assert len(shape) == 3 and shape[1] % 2 == 0, f"{name} {shape} is not a stack of gate and up matrices"
            return (2 * shape[0], shape[1] // 2, shape[2])
