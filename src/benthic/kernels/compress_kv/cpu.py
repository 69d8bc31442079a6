"""Compression on the CPU: blocks in a loop, all channels of a block at once, raw rows read where they lie."""

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import bytes8, float32s, int64s, kernel
from benthic.kernels.numba_math import exp32
from benthic.kernels.precision import wide


def compress_kv_cpu(raw: Tensor, ape: Tensor, sources: Tensor, first: Tensor | None, dim: int) -> Tensor:
    """See `compress_kv`. `raw` may be a column slice of a wider buffer."""
    rows = wide(raw)
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    blocks, slots = sources.shape
    bias, sources = wide(ape).contiguous(), sources.contiguous()
    pooled = torch.empty((blocks, dim))
    if blocks:
        _pool(
            rows.data_ptr(),
            bias.data_ptr(),
            sources.data_ptr(),
            0 if first is None else first.data_ptr(),
            pooled.data_ptr(),
            blocks,
            slots,
            dim,
            rows.shape[1] // 2,
            rows.stride(0),
        )
    return pooled


@kernel
def _pool(
    raw_at: int,
    bias_at: int,
    sources_at: int,
    first_at: int,
    pooled_at: int,
    blocks: int,
    slots: int,
    dim: int,
    width: int,
    row_stride: int,
) -> None:
    overlap = width == 2 * dim
    period = slots // 2 if overlap else slots
    bias = float32s(bias_at, (period, width))
    sources = int64s(sources_at, (blocks, slots))
    pooled = float32s(pooled_at, (blocks, dim))
    gates, total, top = np.empty((slots, dim), np.float32), np.empty(dim, np.float32), np.empty(dim, np.float32)
    for block in range(blocks):
        absent = bytes8(first_at, (blocks,))[block] != 0 if first_at else False
        begin = period if overlap and absent else 0
        top[:] = np.float32(-np.inf)
        for slot in range(begin, slots):
            # The predecessor gives its first series, the own block its second.
            shift = dim if overlap and slot >= period else 0
            gate = float32s(raw_at + 4 * (sources[block, slot] * row_stride + width + shift), (dim,))
            offset = bias[slot % period, shift : shift + dim]
            for i in range(dim):
                gates[slot, i] = gate[i] + offset[i]
                top[i] = max(top[i], gates[slot, i])
        total[:] = 0
        for slot in range(begin, slots):
            for i in range(dim):
                gates[slot, i] = exp32(gates[slot, i] - top[i])
                total[i] += gates[slot, i]
        target = pooled[block]
        target[:] = 0
        for slot in range(begin, slots):
            shift = dim if overlap and slot >= period else 0
            value = float32s(raw_at + 4 * (sources[block, slot] * row_stride + shift), (dim,))
            for i in range(dim):
                target[i] += (gates[slot, i] / total[i]) * value[i]
