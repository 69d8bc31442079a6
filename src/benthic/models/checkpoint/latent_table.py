"""The pieces of V2's and V3's layers (family.md 6)."""

from collections.abc import Iterator

from benthic.models.checkpoint.expert_table import expert_pieces
from benthic.models.checkpoint.piece import Piece
from benthic.models.config import LayerSpec, ModelConfig


def latent_layer(prefix: str, spec: LayerSpec, config: ModelConfig) -> Iterator[Piece]:
    """Attention, then experts or a dense MLP, each behind its norm."""
    yield Piece(prefix + "attn_norm.weight", (config.hidden_size,), "wide")
    yield from _attention(prefix + "attn.", config)
    if spec.has_index:
        yield from _indexer(prefix + "attn.indexer.", config)
    yield Piece(prefix + "ffn_norm.weight", (config.hidden_size,), "wide")
    yield from expert_pieces(prefix + "ffn.", spec, config)


def latent_head(prefix: str, config: ModelConfig) -> Iterator[Piece]:
    """The norm before the output head."""
    yield Piece(prefix + "norm.weight", (config.hidden_size,), "wide")


def latent_mtp_input(prefix: str, config: ModelConfig) -> Iterator[Piece]:
    """One product of the embedding beside the hidden state; the released files keep it in bf16."""
    yield Piece(prefix + "eh_proj.weight", (config.hidden_size, 2 * config.hidden_size), "wide")


def _attention(prefix: str, config: ModelConfig) -> Iterator[Piece]:
    c, dim, heads = config, config.hidden_size, config.num_attention_heads
    query = heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
    if c.q_lora_rank:
        yield Piece(prefix + "wq_a.weight", (c.q_lora_rank, dim), "block")
        yield Piece(prefix + "q_norm.weight", (c.q_lora_rank,), "wide")
        yield Piece(prefix + "wq_b.weight", (query, c.q_lora_rank), "block")
    else:
        yield Piece(prefix + "wq.weight", (query, dim), "block")
    yield Piece(prefix + "wkv_a.weight", (c.entry_dim, dim), "block")
    yield Piece(prefix + "kv_norm.weight", (c.kv_lora_rank,), "wide")
    yield Piece(prefix + "wkv_b.weight", (heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank), "block")
    yield Piece(prefix + "wo.weight", (dim, heads * c.v_head_dim), "block")


def _indexer(prefix: str, config: ModelConfig) -> Iterator[Piece]:
    c = config
    yield Piece(prefix + "wq_b.weight", (c.index_n_heads * c.index_head_dim, c.q_lora_rank), "block")
    yield Piece(prefix + "wk.weight", (c.index_head_dim, c.hidden_size), "block")
    yield Piece(prefix + "k_norm.weight", (c.index_head_dim,), "single")
    yield Piece(prefix + "k_norm.bias", (c.index_head_dim,), "single")
    yield Piece(prefix + "weights_proj.weight", (c.index_n_heads, c.hidden_size), "wide")
