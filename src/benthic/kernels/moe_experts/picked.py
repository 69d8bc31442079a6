"""Outputs of routed experts that nobody has added up yet: what reads them next may do it on the way."""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.moe_experts.cuda import add_picks

MOST_PICKS = 8
"""Of a row whose picks another kernel adds: it holds them all."""


class PickedRows(NamedTuple):
    """The output of R rows in parts: bfloat16((outputs of a row's picks, in order, added in float32) + shared).

    outputs: bfloat16 [R * K, D], in order of picks; without meaning for rows that are not live.
    slots: int32 [R, K], as in ExpertRows: -1 for rows that are not live, which have their shared output only.
    shared: bfloat16 [R, D], the shared experts' output.
    """

    outputs: Tensor
    slots: Tensor
    shared: Tensor

    def summed(self) -> Tensor:
        """bfloat16 [R, D]: one launch on CUDA."""
        if self.outputs.is_cuda:
            return add_picks(self.outputs, self.slots, self.shared, torch.bfloat16)
        total = torch.zeros(self.shared.shape)
        for part in self.outputs.view(*self.slots.shape, -1).unbind(1):
            total += part.float().masked_fill(self.slots[:, :1] < 0, 0.0)
        return (total + self.shared.float()).bfloat16()
