"""One layer: attention and a feed-forward part, each between a read of the residual streams and a merge into them."""

from torch import Tensor, nn

from benthic.kernels.linear import by_columns
from benthic.kernels.moe_experts import PickedRows
from benthic.models.attention import HybridAttention, LatentAttention
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.hyper_connection import HyperSite, site_parameters
from benthic.models.moe import DenseMlp, MoE
from benthic.models.norm import RMSNorm
from benthic.models.numerics import LayerInput, Numerics
from benthic.models.residual import PlainSite, Site, Unmerged
from benthic.models.trace import Trace


class Block(nn.Module):
    """Site A (attention), then site F (experts or a dense MLP); `layer` is its number in contexts and traces.

    What a layer is made of is its `spec`'s to say. Layers of mHC (model.md 2.2) own the mixing weights of both sites.
    """

    def __init__(self, config: ModelConfig, layer: int, spec: LayerSpec, numerics: Numerics, min_rows: int) -> None:
        super().__init__()
        self.layer, self.is_mixed = layer, spec.residual == "mhc"
        if self.is_mixed:
            self.hc_attn_fn, self.hc_attn_base, self.hc_attn_scale = site_parameters(config)
            self.hc_ffn_fn, self.hc_ffn_base, self.hc_ffn_scale = site_parameters(config)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attn: HybridAttention | LatentAttention
        if spec.attention == "latent":
            self.attn = LatentAttention(config, layer, spec, numerics, min_rows)
        else:
            self.attn = HybridAttention(config, layer, spec.ratio, numerics, min_rows)
        self.ffn: DenseMlp | MoE
        if spec.mlp == "dense":
            self.ffn = DenseMlp(config, numerics, config.intermediate_size)
        else:
            self.ffn = MoE(config, spec, numerics, min_rows)
        self.site: Site = HyperSite(config, numerics) if self.is_mixed else PlainSite(config.rms_norm_eps, numerics)

    def forward(self, before: Tensor | Unmerged, context: AttentionContext, trace: Trace | None = None) -> Unmerged:
        """Streams [R, n, D], or what the block before left of them -> what this one leaves: see `merged`."""
        attn_mixing, ffn_mixing = self._mixing()
        entered = self.site.enter(before, self.attn_norm.weight, attn_mixing)
        before = entered.left(self.attn(entered.input, context, trace))
        entered = self.site.enter(before, self.ffn_norm.weight, ffn_mixing)
        return entered.left(*self._feed_forward(entered.input, context, trace))

    def merged(self, left: Tensor | Unmerged) -> Tensor:
        """Streams [R, n, D] with this block's last output in them."""
        return self.site.merge(left)

    def _feed_forward(
        self, x: LayerInput, context: AttentionContext, trace: Trace | None
    ) -> tuple[Tensor | PickedRows, Tensor | None]:
        """The output, or its routed and its shared half."""
        if isinstance(self.ffn, DenseMlp):
            return self.ffn.product(x.rounded), None
        output: tuple[Tensor | PickedRows, Tensor | None] = self.ffn(x, context, self.layer, trace)
        return output

    def _mixing(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Weights of both sites, in the order in which `enter` takes them."""
        if not self.is_mixed:
            return (), ()
        return (
            (self.hc_attn_fn, self.hc_attn_scale, self.hc_attn_base),
            (self.hc_ffn_fn, self.hc_ffn_scale, self.hc_ffn_base),
        )

    def freeze(self) -> None:
        """Lays the mixing weights out for serving; values stay."""
        if isinstance(self.site, HyperSite):
            for fn in (self.hc_attn_fn, self.hc_ffn_fn):
                fn.data = by_columns(fn, num_segments=self.site.num_streams)
