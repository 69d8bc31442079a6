"""Box 1: the weights, piece by piece of the checkpoint's own table, summed by part, format and how they are divided.

Nothing is counted twice: parameters, bytes and active parameters come from `models.checkpoint.table.pieces`, which
loading uses as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from benthic.models.checkpoint.piece import Piece
from benthic.models.checkpoint.table import (
    ITEM_BYTES,
    Storage,
    Weights,
    pieces,
    scale_dtype,
    scale_shape,
    storage,
)
from benthic.models.config import ModelConfig

# What tensor parallelism does with a piece: cuts it, gives each device whole experts, or leaves it whole everywhere.
Split = Literal["cut", "expert", "whole"]

PARTS = (
    "embedding",
    "attention",
    "compressor",
    "indexer",
    "router",
    "routed experts",
    "shared experts",
    "dense MLP",
    "hyper-connections",
    "norms",
    "head",
    "MTP",
)
"""In the order of the forward pass, the draft block last."""

CUT_LEAVES = frozenset({"wq", "wq_b", "wkv_b", "wo", "wo_a", "wo_b", "attn_sink", "w1", "w2", "w3", "embed", "head"})
"""Cut by heads, output groups, width or vocabulary. The rest makes or reads what all heads share, and is small."""

VALUE_BYTES: dict[Storage, int] = {"bf16": 2, "fp32": 4, "ids": 8}


@dataclass(frozen=True, slots=True)
class Holding:
    """Pieces of one part in one format that are divided in one way.

    `parameters` counts numbers (token-to-expert tables are none), `active_parameters` those that work on one token,
    `product_parameters` those of matrices that one token is multiplied by, `num_bytes` what files hold, with scales.
    """

    part: str
    form: Storage
    split: Split
    parameters: int
    active_parameters: float
    product_parameters: float
    num_bytes: int


def holdings(config: ModelConfig, weights: Weights = "official") -> tuple[Holding, ...]:
    """The weights of a model in files that hold `weights`, in the order of `PARTS`.

    Raises:
        CheckpointError: a matrix cannot be held in that format.
    """
    sums: dict[tuple[str, Storage, Split], list[float]] = {}
    for piece, count in _counted(config):
        form = storage(piece, config, weights)
        numbers = count * prod(piece.shape) * (piece.kind != "ids")
        active = numbers * _active_share(piece, config)
        row = sums.setdefault((_part(piece), form, _split(piece)), [0, 0, 0, 0])
        row[0] += numbers
        row[1] += active
        row[2] += active * _is_product(piece)
        row[3] += count * _piece_bytes(piece, form, config)
    found = (
        Holding(part, form, split, int(row[0]), row[1], row[2], int(row[3]))
        for (part, form, split), row in sums.items()
    )
    return tuple(sorted(found, key=lambda held: (PARTS.index(held.part), held.form, held.split)))


def total_parameters(held: tuple[Holding, ...]) -> int:
    """As papers count them: without MTP blocks."""
    return sum(item.parameters for item in held if item.part != "MTP")


def active_parameters(held: tuple[Holding, ...]) -> float:
    """Those that work on one token: without the embedding, of which it reads one row, and without MTP blocks."""
    return sum(item.active_parameters for item in held if item.part != "MTP")


def touched_share(config: ModelConfig, rows: float) -> float:
    """Share of a layer's experts that `rows` tokens reach, if every expert is as likely as the others."""
    return 1 - (1 - config.num_experts_per_tok / config.n_routed_experts) ** rows


def _counted(config: ModelConfig) -> Iterator[tuple[Piece, int]]:
    """Every piece and how often; the routed experts of a layer are alike, so the first stands for all."""
    for piece in pieces(config):
        if ".experts." not in piece.name:
            yield piece, 1
        elif ".experts.0." in piece.name:
            yield piece, config.n_routed_experts


def _piece_bytes(piece: Piece, form: Storage, config: ModelConfig) -> int:
    """With scales."""
    values = prod(piece.shape)
    if form in ("fp4", "fp8"):
        data = values // 2 if form == "fp4" else values
        return data + prod(scale_shape(form, piece.shape)) * ITEM_BYTES[scale_dtype(config)]
    return values * VALUE_BYTES[form]


def _part(piece: Piece) -> str:
    name = piece.name
    if name.startswith("mtp."):
        return "MTP"
    if name == "embed.weight":
        return "embedding"
    if name == "head.weight":
        return "head"
    marks = (
        ("hc_", "hyper-connections"),
        (".experts.", "routed experts"),
        (".shared_experts.", "shared experts"),
        (".ffn.gate.", "router"),
        (".indexer.", "indexer"),
        (".compressor.", "compressor"),
        ("norm.", "norms"),
        (".attn.", "attention"),
        (".ffn.", "dense MLP"),
    )
    return next(part for mark, part in marks if mark in name)


def _split(piece: Piece) -> Split:
    if ".experts." in piece.name:
        return "expert"
    if ".indexer." in piece.name or ".compressor." in piece.name:
        return "whole"
    return "cut" if _leaf(piece) in CUT_LEAVES else "whole"


def _leaf(piece: Piece) -> str:
    return piece.name.removesuffix(".weight").rpartition(".")[2]


def _active_share(piece: Piece, config: ModelConfig) -> float:
    if piece.name == "embed.weight":
        return 0.0
    return config.num_experts_per_tok / config.n_routed_experts if ".experts." in piece.name else 1.0


def _is_product(piece: Piece) -> bool:
    is_matrix = len(piece.shape) == 2 and piece.kind != "ids" and piece.name != "embed.weight"
    return is_matrix and not piece.name.endswith(".ape")
