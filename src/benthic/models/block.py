"""One layer: attention and experts, each between two mixings of the residual streams (model.md 2.2)."""

from torch import Tensor, nn

from benthic.kernels.linear import by_columns
from benthic.models.attention import HybridAttention
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.hyper_connection import HyperSite, site_parameters
from benthic.models.moe import MoE
from benthic.models.norm import RMSNorm
from benthic.models.numerics import Numerics
from benthic.models.trace import Trace


class Block(nn.Module):
    """Site A (attention), then site F (experts); `layer` is its number in contexts and traces."""

    def __init__(self, config: ModelConfig, layer: int, spec: LayerSpec, numerics: Numerics, min_rows: int) -> None:
        super().__init__()
        self.layer = layer
        self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale = site_parameters(config)
        self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale = site_parameters(config)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn = HybridAttention(config, layer, spec.ratio, numerics, min_rows)
        self.ffn = MoE(config, spec, numerics, min_rows)
        self.site = HyperSite(config)

    def forward(self, streams: Tensor, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        """[R, n, D] -> [R, n, D]."""
        mix = self.site.before(streams, self.hc_attn_fn, self.hc_attn_scale, self.hc_attn_base)
        streams = self.site.after(self.attn(self.attn_norm(mix.input), context, trace), streams, mix)
        mix = self.site.before(streams, self.hc_ffn_fn, self.hc_ffn_scale, self.hc_ffn_base)
        output = self.ffn(self.ffn_norm(mix.input), context.rows, self.layer, trace)
        return self.site.after(output, streams, mix)

    def freeze(self) -> None:
        """Lays the mixing weights out for serving; values stay."""
        for fn in (self.hc_attn_fn, self.hc_ffn_fn):
            fn.data = by_columns(fn, num_segments=self.site.num_streams)
