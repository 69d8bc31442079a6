"""The pieces of one layer's experts, or of its dense stand-in (family.md 2)."""

from collections.abc import Iterator

from benthic.models.checkpoint.piece import Kind, Piece
from benthic.models.config import LayerSpec, ModelConfig


def expert_pieces(prefix: str, spec: LayerSpec, config: ModelConfig) -> Iterator[Piece]:
    """Gate, shared experts, then each routed expert; or the three matrices of a dense layer."""
    dim, width, experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    if spec.mlp == "dense":
        yield from _matrices(prefix, config.intermediate_size, dim, "block")
        return
    yield Piece(prefix + "gate.weight", (experts, dim), "wide")
    if spec.routing == "hash":
        yield Piece(prefix + "gate.tid2eid", (config.vocab_size, config.num_experts_per_tok), "ids")
    elif spec.routing == "bias":
        yield Piece(prefix + "gate.bias", (experts,), "single")
    yield from _matrices(prefix + "shared_experts.", width * config.n_shared_experts, dim, "block")
    for index in range(experts):
        yield from _matrices(f"{prefix}experts.{index}.", width, dim, "expert")


def _matrices(prefix: str, width: int, dim: int, kind: Kind) -> Iterator[Piece]:
    yield Piece(prefix + "w1.weight", (width, dim), kind)
    yield Piece(prefix + "w3.weight", (width, dim), kind)
    yield Piece(prefix + "w2.weight", (dim, width), kind)
