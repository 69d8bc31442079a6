"""y[rows of e] = x[rows of e] W_e^T, one product an expert that has rows."""

import torch
from torch import Tensor

from benthic.kernels.linear import Fp8Weight, linear
from benthic.kernels.precision import wide
from benthic.kernels.quantize import QuantizedRows


def grouped_linear_ref(x: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    """A loop of products over the groups that have rows; `group_ends` is read by the host.

    `unbind` once, not `weight[e]` each time: the gradient of the latter fills a tensor of all experts per expert.
    """
    x_wide = wide(x)
    experts = weight.to(x_wide.dtype).unbind(0)
    outputs, start = [], 0
    for expert, end in enumerate(group_ends.tolist()):
        if end > start:
            outputs.append(linear(x_wide[start:end], experts[expert]))
            start = end
    if not outputs:
        return (x_wide @ experts[0].t()).to(x.dtype)
    return (torch.cat(outputs) if len(outputs) > 1 else outputs[0]).to(x.dtype)


def grouped_fp8_ref(x: QuantizedRows, weight: Fp8Weight, group_ends: Tensor, out_dtype: torch.dtype) -> Tensor:
    """A loop of FP8 products over the groups that have rows."""
    outputs, start = [x.scale.new_empty((0, weight.shape[1]), dtype=out_dtype)], 0
    for expert, end in enumerate(group_ends.tolist()):
        if end > start:
            one = Fp8Weight(weight.data[expert], weight.scale[expert])
            outputs.append(linear(x.rows(start, end), one, out_dtype, impl="reference"))
            start = end
    return torch.cat(outputs)


def grouped_row_scaled_ref(
    x: QuantizedRows, data: Tensor, base: Tensor, group_ends: Tensor, out_dtype: torch.dtype
) -> Tensor:
    """The same with tile scales of 1, times one scale an output at the end."""
    tiles = (*data.shape[:1], *(-(-size // 128) for size in data.shape[1:]))
    product = grouped_fp8_ref(x, Fp8Weight(data, base.new_ones(tiles)), group_ends, torch.float32)
    ends = torch.cat((group_ends.new_zeros(1), group_ends)).diff()
    return (product * base.repeat_interleave(ends, 0)).to(out_dtype)
