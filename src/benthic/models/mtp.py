"""Multi-token prediction: one more block that guesses the token after next (model.md 2.10)."""

from torch import Tensor

from benthic.models.block import Block
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.hyper_connection import HyperHead, head_parameters
from benthic.models.linear import Linear
from benthic.models.norm import RMSNorm
from benthic.models.numerics import Numerics
from benthic.models.trace import Trace


class MTPBlock(Block):
    """A window-attention block fed by the main model's streams and the next token; embedding and head are shared."""

    def __init__(self, config: ModelConfig, layer: int, spec: LayerSpec, numerics: Numerics, min_rows: int) -> None:
        super().__init__(config, layer, spec, numerics, min_rows)
        hidden = config.hidden_size
        self.e_proj = Linear(hidden, hidden, numerics)
        self.h_proj = Linear(hidden, hidden, numerics)
        self.enorm = RMSNorm(hidden, config.rms_norm_eps)
        self.hnorm = RMSNorm(hidden, config.rms_norm_eps)
        self.norm = RMSNorm(hidden, config.rms_norm_eps)
        self.hc_head_fn, self.hc_head_base, self.hc_head_scale = head_parameters(config)
        self.head_mix = HyperHead(config)

    def draft(self, streams: Tensor, embedded: Tensor, context: AttentionContext, trace: Trace | None) -> Tensor:
        """Streams X_t [R, n, D] and embedding of token t+1 [R, D] -> the block's streams [R, n, D]."""
        rows, width, hidden = streams.shape
        from_token = self.e_proj(self.enorm(embedded))
        from_streams = self.h_proj(self.hnorm(streams).reshape(rows * width, hidden)).view(rows, width, hidden)
        return self(from_token[:, None, :] + from_streams, context, trace)

    def hidden(self, streams: Tensor) -> Tensor:
        """[R, n, D] -> [R, D], ready for the shared head."""
        return self.norm(self.head_mix(streams, self.hc_head_fn, self.hc_head_scale, self.hc_head_base))
