"""The meaning of compression: a softmax over a block's tokens, channel by channel (model.md 2.5 steps 1-3)."""

import torch
from torch import Tensor

from benthic.kernels.precision import wide


def compress_kv_ref(raw: Tensor, ape: Tensor, sources: Tensor, first: Tensor | None, dim: int) -> Tensor:
    """e = sum_s softmax_s(B + ape)_s * A_s for each block and channel; raw rows are A | B."""
    blocks, slots = sources.shape
    rows = wide(raw).index_select(0, sources.view(-1)).view(blocks, slots, -1)
    width = rows.shape[-1] // 2
    values, gates = rows[..., :width], rows[..., width:]
    bias = wide(ape)
    if width == dim:
        return (values * (gates + bias).softmax(1)).sum(1)
    # Overlap: the predecessor's first series, then the own block's second.
    half = slots // 2
    values = torch.cat([values[:, :half, :dim], values[:, half:, dim:]], dim=1)
    gates = torch.cat([gates[:, :half, :dim] + bias[:, :dim], gates[:, half:, dim:] + bias[:, dim:]], dim=1)
    if first is not None:
        absent = first & (torch.arange(slots, device=raw.device)[:, None] < half)
        values = values.masked_fill(absent, 0.0)
        gates = gates.masked_fill(absent, float("-inf"))
    return (values * gates.softmax(1)).sum(1)
