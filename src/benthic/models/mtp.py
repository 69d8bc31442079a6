"""Multi-token prediction: one more block that guesses the token after next (model.md 2.10, family.md 6)."""

import torch
from torch import Tensor

from benthic.models.block import Block
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.hyper_connection import HyperHead, head_parameters
from benthic.models.linear import Linear
from benthic.models.norm import RMSNorm
from benthic.models.numerics import Numerics
from benthic.models.residual import PlainHead
from benthic.models.trace import Trace


class MTPBlock(Block):
    """A block fed by the main model's streams and the next token; embedding and head are shared.

    V4 projects the token and every stream each by a matrix of its own; V3 both at once, side by side.
    """

    def __init__(self, config: ModelConfig, layer: int, spec: LayerSpec, numerics: Numerics, min_rows: int) -> None:
        super().__init__(config, layer, spec, numerics, min_rows)
        hidden = config.hidden_size
        if self.is_mixed:
            self.e_proj = Linear(hidden, hidden, numerics)
            self.h_proj = Linear(hidden, hidden, numerics)
        else:
            # Released in bf16: its input is not rounded.
            self.eh_proj = Linear(2 * hidden, hidden)
        self.enorm = RMSNorm(hidden, config.rms_norm_eps)
        self.hnorm = RMSNorm(hidden, config.rms_norm_eps)
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        if self.is_mixed:
            self.hc_head_fn, self.hc_head_base, self.hc_head_scale = head_parameters(config)
        self.head_mix = HyperHead(config) if self.is_mixed else PlainHead(config.rms_norm_eps)

    def draft(self, streams: Tensor, embedded: Tensor, context: AttentionContext, trace: Trace | None) -> Tensor:
        """Streams X_t [R, n, D] and embedding of token t+1 [R, D] -> the block's streams [R, n, D]."""
        rows, width, hidden = streams.shape
        if not self.is_mixed:
            both = torch.cat((self.enorm(embedded), self.hnorm(streams[:, 0])), dim=-1)
            return self.merged(self(self.eh_proj(both)[:, None], context, trace))
        from_token = self.e_proj(self.enorm(embedded))
        from_streams = self.h_proj(self.hnorm(streams).reshape(rows * width, hidden)).view(rows, width, hidden)
        return self.merged(self(from_token[:, None, :] + from_streams, context, trace))

    def hidden(self, streams: Tensor) -> Tensor:
        """[R, n, D] -> [R, D], ready for the shared head."""
        mixing = (self.hc_head_fn, self.hc_head_scale, self.hc_head_base) if self.is_mixed else ()
        return self.head_mix(streams, self.norm.weight, *mixing)
