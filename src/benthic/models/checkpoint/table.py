"""The tensors of a model, from its configuration alone: what a checkpoint must hold, and what its files look like.

A `Piece` is one matrix or vector of the model under its official name, whatever file it lies in. A `TensorSpec` is
one tensor of a file: in the official layout a piece is one tensor, or two when it is quantised (weight and scale);
in the Hugging Face layout the experts of a layer are stacked, unless they are quantised. Released sizes are
reproduced to the byte (model.md 4.1, 4.2).
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Literal, NamedTuple

from benthic.errors import CheckpointError
from benthic.models.checkpoint.expert_table import expert_pieces
from benthic.models.checkpoint.latent_table import latent_head, latent_layer, latent_mtp_input
from benthic.models.checkpoint.names import expert_slice, latent_file_name, scale_name, transformers_name
from benthic.models.checkpoint.piece import Piece
from benthic.models.config import LayerSpec, ModelConfig

Layout = Literal["official", "hf"]
Weights = Literal["official", "fp8", "bf16", "fp32"]
Storage = Literal["fp4", "fp8", "bf16", "fp32", "ids"]

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
BLOCK = 128
GROUP = 32


class TensorSpec(NamedTuple):
    """One tensor of a file; `dtype` in the words of safetensors."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


class Place(NamedTuple):
    """Where a piece lies in its files: its tensor, the first row there (all dims but the last are rows), its scales."""

    weight: str
    row: int
    scale: str


def tensor_table(
    config: ModelConfig, *, layout: Layout = "official", weights: Weights = "official"
) -> tuple[TensorSpec, ...]:
    """Every tensor of the files of such a model, in the order of the forward pass. Needs no weights."""
    specs: dict[str, TensorSpec] = {}
    for piece in pieces(config):
        for spec in _specs_of(piece, config, layout, weights):
            specs.setdefault(spec.name, spec)
    return tuple(specs.values())


def pieces(config: ModelConfig) -> Iterator[Piece]:
    """Every matrix and vector of the model, in the order of the forward pass; MTP blocks last."""
    dim, vocab = config.hidden_size, config.vocab_size
    yield Piece("embed.weight", (vocab, dim), "wide")
    layer, head, mtp_input = _PARTS[config.is_latent]
    for index, spec in enumerate(config.layers):
        yield from layer(f"layers.{index}.", spec, config)
    yield from head("", config)
    yield Piece("head.weight", (vocab, dim), "wide")
    for index, spec in enumerate(config.mtp_layers):
        prefix = f"mtp.{index}."
        yield Piece(prefix + "enorm.weight", (dim,), "wide")
        yield Piece(prefix + "hnorm.weight", (dim,), "wide")
        yield from mtp_input(prefix, config)
        yield from layer(prefix, spec, config)
        yield from head(prefix, config)


def storage(piece: Piece, config: ModelConfig, weights: Weights) -> Storage:
    """The number format of a piece in files that hold `weights`."""
    if piece.kind == "ids":
        return "ids"
    if piece.kind == "single" or weights == "fp32":
        return "fp32"
    if piece.kind == "wide" or weights == "bf16":
        return "bf16"
    if weights == "fp8":
        return "fp8"
    return config.expert_dtype if piece.kind == "expert" else config.weight_dtype


def scale_shape(form: Storage, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Scales of a quantised matrix: one for 128x128 values (fp8) or for 32 along the input (fp4)."""
    rows, columns = shape[-2:]
    return (rows, columns // GROUP) if form == "fp4" else (-(-rows // BLOCK), -(-columns // BLOCK))


def place(piece: Piece, form: Storage, layout: Layout, config: ModelConfig) -> Place:
    """Where a piece lies in files of that layout, by the names in the file."""
    rename = file_names(layout, config)
    part = expert_slice(piece.name)
    if part is None or layout == "official" or form in ("fp4", "fp8") or piece.name.startswith("mtp."):
        # Quantised experts stay single in both layouts: transformers decodes them only so.
        return Place(rename(piece.name), 0, rename(scale_name(piece.name)))
    halves = 2 if part.stack.endswith("w13") else 1
    return Place(rename(part.stack), (part.expert * halves + part.half) * piece.shape[0], "")


def scale_dtype(config: ModelConfig) -> str:
    """How files hold the scales of quantised matrices: V3's are float32 numbers, whatever values they take."""
    return "F32" if config.is_latent else "F8_E8M0"


def file_names(layout: Layout, config: ModelConfig) -> Callable[[str], str]:
    """From the house's name of a tensor to that of files; V2 and V3 have the same one in both layouts."""
    if config.is_latent:
        return partial(latent_file_name, num_layers=config.num_hidden_layers)
    return transformers_name if layout == "hf" else str


def _specs_of(piece: Piece, config: ModelConfig, layout: Layout, weights: Weights) -> Iterator[TensorSpec]:
    form = storage(piece, config, weights)
    where = place(piece, form, layout, config)
    shape = piece.shape
    if where.weight.endswith((".experts.gate_up_proj", ".experts.down_proj")):
        halves = 2 if where.weight.endswith("gate_up_proj") else 1
        shape = (config.n_routed_experts, halves * shape[0], shape[1])
    if form == "fp4":
        if piece.shape[-1] % GROUP:
            raise CheckpointError(
                f"{piece.name} has {piece.shape[-1]} input values; fp4 needs a multiple of {GROUP}: "
                "choose fp8, bf16 or fp32 weights"
            )
        yield TensorSpec(where.weight, (shape[0], shape[1] // 2), "I8")
    else:
        dtype = {"fp8": "F8_E4M3", "bf16": "BF16", "fp32": "F32", "ids": "I64"}[form]
        yield TensorSpec(where.weight, shape, dtype)
    if form in ("fp4", "fp8"):
        yield TensorSpec(where.scale, scale_shape(form, shape), scale_dtype(config))


def _layer(prefix: str, spec: LayerSpec, config: ModelConfig) -> Iterator[Piece]:
    dim = config.hidden_size
    yield from _hyper_connection(prefix + "hc_attn_", config)
    yield Piece(prefix + "attn_norm.weight", (dim,), "wide")
    yield from _attention(prefix + "attn.", spec.ratio, config)
    yield from _hyper_connection(prefix + "hc_ffn_", config)
    yield Piece(prefix + "ffn_norm.weight", (dim,), "wide")
    yield from expert_pieces(prefix + "ffn.", spec, config)


def _mtp_input(prefix: str, config: ModelConfig) -> Iterator[Piece]:
    dim = config.hidden_size
    yield Piece(prefix + "e_proj.weight", (dim, dim), "block")
    yield Piece(prefix + "h_proj.weight", (dim, dim), "block")


def _hyper_connection(prefix: str, config: ModelConfig) -> Iterator[Piece]:
    n = config.hc_mult
    yield Piece(prefix + "fn", (n * (n + 2), n * config.hidden_size), "single")
    yield Piece(prefix + "base", (n * (n + 2),), "single")
    yield Piece(prefix + "scale", (3,), "single")


def _head(prefix: str, config: ModelConfig) -> Iterator[Piece]:
    n = config.hc_mult
    yield Piece(prefix + "hc_head_fn", (n, n * config.hidden_size), "single")
    yield Piece(prefix + "hc_head_base", (n,), "single")
    yield Piece(prefix + "hc_head_scale", (1,), "single")
    yield Piece(prefix + "norm.weight", (config.hidden_size,), "wide")


def _attention(prefix: str, ratio: int, config: ModelConfig) -> Iterator[Piece]:
    c, dim = config, config.hidden_size
    group_dim = c.num_attention_heads * c.head_dim // c.o_groups
    yield Piece(prefix + "wq_a.weight", (c.q_lora_rank, dim), "block")
    yield Piece(prefix + "q_norm.weight", (c.q_lora_rank,), "wide")
    yield Piece(prefix + "wq_b.weight", (c.num_attention_heads * c.head_dim, c.q_lora_rank), "block")
    yield Piece(prefix + "wkv.weight", (c.head_dim, dim), "block")
    yield Piece(prefix + "kv_norm.weight", (c.head_dim,), "wide")
    yield Piece(prefix + "attn_sink", (c.num_attention_heads,), "single")
    yield Piece(prefix + "wo_a.weight", (c.o_groups * c.o_lora_rank, group_dim), "block")
    yield Piece(prefix + "wo_b.weight", (dim, c.o_groups * c.o_lora_rank), "block")
    if ratio:
        yield from _compressor(prefix + "compressor.", ratio, c.head_dim, dim)
    if ratio == 4:
        index_dim = c.index_n_heads * c.index_head_dim
        yield Piece(prefix + "indexer.wq_b.weight", (index_dim, c.q_lora_rank), "block")
        yield Piece(prefix + "indexer.weights_proj.weight", (c.index_n_heads, dim), "wide")
        yield from _compressor(prefix + "indexer.compressor.", ratio, c.index_head_dim, dim)


def _compressor(prefix: str, ratio: int, head_dim: int, dim: int) -> Iterator[Piece]:
    width = head_dim * (2 if ratio == 4 else 1)  # a block of 4 overlaps the block before it: two series
    yield Piece(prefix + "wkv.weight", (width, dim), "wide")
    yield Piece(prefix + "wgate.weight", (width, dim), "wide")
    yield Piece(prefix + "ape", (ratio, width), "single")
    yield Piece(prefix + "norm.weight", (head_dim,), "wide")


_PARTS = {False: (_layer, _head, _mtp_input), True: (latent_layer, latent_head, latent_mtp_input)}
"""Layer, head and what feeds an MTP block, by whether attention is latent."""
