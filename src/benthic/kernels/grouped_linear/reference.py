"""y[rows of e] = x[rows of e] W_e^T, one product an expert that has rows."""

import torch
from torch import Tensor

from benthic.kernels.linear import linear
from benthic.kernels.precision import wide


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
