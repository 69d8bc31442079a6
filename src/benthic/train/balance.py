"""Load balance without an auxiliary loss: a bias on each expert's selection score (model.md 2.8).

    b_e <- b_e + rate * sign(mean load - load_e)

An expert that got more than its share becomes a little less eligible. The bias takes no part in the gate weights, so
no gradient is touched.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def update_biases(biases: Sequence[Tensor], loads: Sequence[Tensor], rate: Tensor) -> None:
    """Moves each router's correction bias in place.

    Args:
        biases: fp32 [E] of each router that chooses by score.
        loads: rows sent to each expert, [E] of any dtype, in the same order.
        rate: step of the bias, scalar tensor on the same device (a tensor, so that a captured step can change it).
    """
    assert len(biases) == len(loads)
    for bias, load in zip(biases, loads, strict=True):
        load = load.to(bias.dtype)
        bias.add_(torch.sign(load.mean() - load) * rate)
