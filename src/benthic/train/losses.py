"""The training loss: next token, tokens after it (MTP), and the indexer's imitation of attention.

    loss = sum_t w_{t+1} ce_{t+1} / W_1
           + mtp_weight * mean_k sum_t w_{t+k+2} ce^k_{t+k+2} / W_{k+2}
           + index_weight * sum over CSA layers of KL

W_s are sums of weights over the whole step, all its batches: cutting a step into more batches changes no gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benthic.errors import ConfigError
from benthic.kernels.cross_entropy import linear_cross_entropy
from benthic.models.packed import PackedContext
from benthic.models.trace import Trace
from benthic.models.transformer import Transformer
from benthic.train.feed import DeviceBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Weights of the parts of the loss."""

    mtp_weight: float = 0.3
    """Weight of multi-token prediction, averaged over its depths (paper 4.2.2: 0.3, then 0.1)."""
    index_weight: float = 1.0
    """Weight of each CSA layer's indexer loss; 0 leaves the indexer untrained."""
    block_rows: int = 8192
    """Rows whose logits exist together."""

    def __post_init__(self) -> None:
        if self.mtp_weight < 0 or self.index_weight < 0:
            raise ConfigError(f"loss weights ({self.mtp_weight}, {self.index_weight}) must not be negative")
        if self.block_rows < 1:
            raise ConfigError(f"loss.block_rows ({self.block_rows}) must be at least 1")


@dataclass(frozen=True, slots=True)
class Losses:
    """fp32 scalars: `total` is what is differentiated; the parts are detached and unweighted."""

    total: Tensor
    next_token: Tensor
    mtp: Tensor
    index: Tensor


def batch_losses(
    model: Transformer,
    batch: DeviceBatch,
    context: PackedContext,
    weight_sums: Tensor,
    config: LossConfig,
    trace: Trace,
    share: float = 1.0,
) -> Losses:
    """Runs the model over one packed batch.

    Args:
        context: made for the batch's rows and plan.
        weight_sums: fp32 [S], the sums of weights over the whole step, all positive.
        trace: collects routes; its indexer losses enter the loss if it wants them.
        share: of this batch in the step, by which the indexer's mean is weighted.
    """
    head = model.head.weight
    streams = model(batch.rows, context, trace)
    next_token = _cross_entropy(model.hidden(streams), head, batch, 0, config) / weight_sums[0]
    mtp = torch.zeros_like(next_token)
    depths = len(model.mtp) if config.mtp_weight else 0
    for depth in range(depths):
        streams = model.mtp_forward(depth, streams, batch.targets[depth], context, trace)
        hidden = model.mtp_hidden(depth, streams)
        mtp = mtp + _cross_entropy(hidden, head, batch, depth + 1, config) / (weight_sums[depth + 1] * depths)
    index = torch.zeros_like(next_token)
    for loss in trace.index_losses.values():
        index = index + loss * share
    total = next_token + config.mtp_weight * mtp + config.index_weight * index
    return Losses(total, next_token.detach(), mtp.detach(), index.detach())


def _cross_entropy(hidden: Tensor, head: Tensor, batch: DeviceBatch, shift: int, config: LossConfig) -> Tensor:
    return linear_cross_entropy(hidden, head, batch.targets[shift], batch.weights[shift], config.block_rows)
