"""The doors of the entry epilogues. All are for inference: training takes the operations one by one."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats import ScaleFormat
from benthic.kernels.choice import Impl, uses_cuda_kernel, uses_triton_kernel
from benthic.kernels.entry_write.cuda import DIM, HeadsBeside, compress_128_cuda, fits_cuda
from benthic.kernels.entry_write.reference import Queries, compress_entries_ref, query_heads_ref, write_kv_ref
from benthic.kernels.entry_write.rounding import IndexRounding
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState, RowTarget
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.rope import RopeTable


def write_kv(
    product: Tensor,
    latent_gain: Tensor,
    kv_gain: Tensor,
    rope: RopeTable,
    target: RowTarget,
    eps: float,
    *,
    kv_group: int = 0,
    linear_scale: ScaleFormat | None = None,
    impl: Impl = "auto",
) -> Tensor | QuantizedRows:
    """The query latent, and this pass's kv rows at their place: norm, rotation, rounding, storage (model.md 2.4, 1-4).

    Args:
        product: [R, q + d], the input's product with wq_a and wkv.
        latent_gain, kv_gain: [q] and [d] of the norms.
        rope: rotations of the R rows.
        target: where the kv rows go, written in place; usually window slots.
        eps: `rms_norm_eps`.
        kv_group: FP8 group on the kv dims that do not rotate (64); 0 leaves them alone.
        linear_scale: give the latent in FP8 groups of 128 under such scales; None: as it is.

    Returns:
        The latent [R, q], in the product's dtype or rounded.
    """
    if product.shape != (rope.cos.shape[0], len(latent_gain) + len(kv_gain)):
        raise KernelInputError(
            f"product has shape {tuple(product.shape)}; beside {rope.cos.shape[0]} rotations and gains of "
            f"{len(latent_gain)} and {len(kv_gain)} it must be [{rope.cos.shape[0]}, {len(latent_gain) + len(kv_gain)}]"
        )
    fits = linear_scale is None or (linear_scale == "ue8m0" and len(latent_gain) % 128 == 0)
    if fits and kv_group in (0, 64) and uses_triton_kernel(impl, product) and product.stride(1) == 1:
        return _triton().write_kv(product, latent_gain, kv_gain, rope, target, eps, kv_group, linear_scale is not None)
    return write_kv_ref(product, latent_gain, kv_gain, rope, target, eps, kv_group, linear_scale, _beside(impl))


def query_heads(
    product: Tensor,
    heads: int,
    dim: int,
    rope: RopeTable,
    eps: float,
    *,
    index_heads: int = 0,
    index_rounding: IndexRounding = "none",
    impl: Impl = "auto",
) -> Queries:
    """Queries of attention, normed a head and turned, and those of the indexer, turned and rounded.

    Args:
        product: [R, H d] or, with an indexer, [R, H d + Hi di]: the latent's product.
        heads, dim: H and d.
        rope: rotations of the R rows, on the last dims of both.
        eps: `rms_norm_eps`.
        index_heads: Hi; 0 where the layer has no indexer, or its queries are not wanted: columns behind are ignored.
        index_rounding: of index queries.

    Returns:
        Queries, in the product's dtype.

    Source: model.md 2.4 step 2, 2.6 steps 1 and 3.
    """
    behind = product.shape[1] - heads * dim
    if product.shape[0] != rope.cos.shape[0] or behind < 0 or (index_heads and (not behind or behind % index_heads)):
        raise KernelInputError(
            f"product has shape {tuple(product.shape)}; it must have {rope.cos.shape[0]} rows of {heads} x {dim} "
            f"columns, and behind them {index_heads} heads of one width"
        )
    fits = not index_heads or _fits_index(index_rounding, behind // index_heads)
    if fits and uses_triton_kernel(impl, product):
        rounds = index_rounding == "fp4"
        return Queries(*_triton().query_heads(product, heads, dim, rope, eps, index_heads, rounds))
    return query_heads_ref(product, heads, dim, rope, eps, index_heads, index_rounding, _beside(impl))


def compress_entries(
    raw: Tensor,
    state: RawState,
    ends: BlockEnds,
    sides: tuple[CompressorSide, ...],
    eps: float,
    *,
    kv_group: int = 0,
    index_rounding: IndexRounding = "none",
    dtype: torch.dtype,
    impl: Impl = "auto",
) -> None:
    """Pools the blocks that end in this pass into entries at their place, then keeps the pass's raw rows.

    Args:
        raw: float32 [R, w'], w' >= w: the input's product with the compressors, A | B of the kv side, then of the
            indexer's; columns behind them are ignored.
        state: the layer's raw rows of earlier passes; read, then written in place.
        ends: which blocks end, and which rows are kept where.
        sides: the kv compressor, then the indexer's if there is one. Their buffers are written in place.
        eps: `rms_norm_eps`.
        kv_group, index_rounding: rounding of entries and indexer keys.
        dtype: of activations, in which a pooled row is normed and stored.

    Source: model.md 2.5. An entry depends on the raw rows of its own block (and, for ratio 4, its predecessor) only.
    """
    width = sum(2 * side.ape.shape[1] for side in sides)
    if raw.shape[1] < width or state.rings.shape[1] != width or len(raw) < len(ends.positions):
        raise KernelInputError(
            f"raw has shape {tuple(raw.shape)}, rings {tuple(state.rings.shape)}; they must hold rows of {width} "
            f"numbers, raw at least {len(ends.positions)} of them"
        )
    index_dim = len(sides[1].gain) if len(sides) > 1 else 64
    # Vectors of 32 would be pooled in a tile as narrow, and have other bits than `compress_kv` gives them.
    fits = _fits_index(index_rounding, index_dim) and (index_rounding == "none" or index_dim >= 64)
    if fits and kv_group in (0, 64) and fits_cuda(raw, state, ends, sides, dtype) and uses_cuda_kernel(impl, raw):
        compress_128_cuda(raw, state, ends, sides[0], eps, kv_group)
        if not ends.by_rows:
            _triton().keep_last(raw, state, ends, sides)
        return
    if fits and kv_group in (0, 64) and uses_triton_kernel(impl, raw):
        _triton().compress_entries(raw, state, ends, sides, eps, kv_group, index_rounding == "fp4", dtype)
        return
    compress_entries_ref(raw[:, :width], state, ends, sides, eps, kv_group, index_rounding, dtype, _beside(impl))


def queries_and_entries(
    product: Tensor,
    heads: int,
    dim: int,
    rope: RopeTable,
    raw: Tensor,
    state: RawState,
    ends: BlockEnds,
    sides: tuple[CompressorSide, ...],
    eps: float,
    *,
    kv_group: int = 0,
    dtype: torch.dtype,
    impl: Impl = "auto",
) -> Tensor:
    """`query_heads` and `compress_entries` of a layer without an indexer: one launch where few rows pool 128 each.

    Returns:
        The query [R, H, d].
    """
    beside = HeadsBeside(product[:, : heads * dim], rope)
    if (
        dim == DIM
        and kv_group in (0, 64)
        and beside.fits(ends)
        and fits_cuda(raw, state, ends, sides, dtype)
        and uses_cuda_kernel(impl, raw)
    ):
        query = compress_128_cuda(raw, state, ends, sides[0], eps, kv_group, beside)
        assert query is not None, "heads were given"
        return query
    compress_entries(raw, state, ends, sides, eps, kv_group=kv_group, dtype=dtype, impl=impl)
    return query_heads(product, heads, dim, rope, eps, impl=impl).query


def _fits_index(rounding: IndexRounding, dim: int) -> bool:
    """Whether the kernels round index vectors so: a Hadamard transform has a power of two of values."""
    return rounding == "none" or (rounding == "fp4" and dim >= 32 and not dim & (dim - 1))


class _Kernels(NamedTuple):
    write_kv: Callable[..., Tensor | QuantizedRows]
    query_heads: Callable[..., tuple[Tensor, Tensor | None]]
    compress_entries: Callable[..., None]
    keep_last: Callable[..., None]


@cache
def _triton() -> _Kernels:
    from benthic.kernels.entry_write.compress_kernel import compress_entries_triton, keep_last_triton
    from benthic.kernels.entry_write.kernel import query_heads_triton, write_kv_triton

    return _Kernels(write_kv_triton, query_heads_triton, compress_entries_triton, keep_last_triton)


def _beside(impl: Impl) -> Impl:
    """How the parts run where no kernel takes the whole."""
    return impl if impl in ("reference", "cpu") else "auto"
