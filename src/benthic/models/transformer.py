"""The model: embedding, blocks, head. One definition for training, scoring and serving."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benthic.kernels.linear import by_columns
from benthic.models.attention import HybridAttention, LatentAttention
from benthic.models.block import Block
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext, Rows
from benthic.models.experts import Experts
from benthic.models.hyper_connection import HyperHead, head_parameters
from benthic.models.linear import Linear, island
from benthic.models.moe import DenseMlp, Router
from benthic.models.mtp import MTPBlock
from benthic.models.norm import RMSNorm
from benthic.models.numerics import Numerics, Policy, Weights, family_rounding
from benthic.models.residual import PlainHead, Unmerged
from benthic.models.trace import Trace


class Transformer(nn.Module):
    """A DeepSeek model, V2 to V4. Parameters carry the names of V4's files, routed experts stacked per layer.

    Args:
        config: sizes.
        numerics: "plain" or "quantized".
        weights: "wide", or "native": FP8 and FP4 as released, multiplied as they are, not to be trained.
        min_rows: rows that a product needs to be exact on this machine (kernels.exactness); passes carry at least
            that many rows, and so does each expert that is hit.
        dtype: of activations. Weights may be wider.

    A row's result depends on its own prefix alone: not on the batch, the chunking or the order of rows.
    """

    def __init__(
        self,
        config: ModelConfig,
        numerics: Policy = "plain",
        *,
        weights: Weights = "wide",
        min_rows: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config, self.min_rows, self.dtype = config, min_rows, dtype
        self.numerics = Numerics(numerics, family_rounding(config), weights)
        # From a tensor, because drawing initial values on the meta device would import torch's compiler: 1.7 s.
        self.embed = nn.Embedding.from_pretrained(torch.empty(config.vocab_size, config.hidden_size), freeze=False)
        self.layers = nn.ModuleList(
            Block(config, index, spec, self.numerics, min_rows) for index, spec in enumerate(config.layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.is_mixed = config.layers[-1].residual == "mhc"
        if self.is_mixed:
            self.hc_head_fn, self.hc_head_base, self.hc_head_scale = head_parameters(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.mtp = nn.ModuleList(
            MTPBlock(config, config.num_hidden_layers + depth, spec, self.numerics, min_rows)
            for depth, spec in enumerate(config.mtp_layers)
        )
        self.head_mix = HyperHead(config) if self.is_mixed else PlainHead(config.rms_norm_eps)

    @property
    def _last_block(self) -> Block:
        block = self.layers[-1]
        assert isinstance(block, Block)
        return block

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed.weight.device

    def embedding(self, token_ids: Tensor) -> Tensor:
        """int64 [R] -> [R, D] in the activation dtype."""
        return F.embedding(token_ids, self.embed.weight).to(self.dtype)

    def forward(self, rows: Rows, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        """Runs the main layers.

        Args:
            rows: the tokens of this pass.
            context: stores their entries and says what each row may read.
            trace: collects routes and indexer losses, if given.

        Returns:
            The residual streams after the last layer, [R, n, D]: input of `hidden` and of `mtp_forward`.
        """
        streams = self.embedding(rows.token_ids)[:, None, :].expand(-1, self.config.hc_mult, -1)
        left: Tensor | Unmerged = streams
        for block in self.layers:
            left = block(left, context, trace)
        return self._last_block.merged(left)

    def hidden(self, streams: Tensor) -> Tensor:
        """[R, n, D] -> [R, D]: what the streams mix to, and the final norm."""
        mixing = (self.hc_head_fn, self.hc_head_scale, self.hc_head_base) if self.is_mixed else ()
        return self.head_mix(streams, self.norm.weight, *mixing)

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, D] -> fp32 [R, V]."""
        return island(hidden, self.head.weight, self.numerics)

    def mtp_forward(
        self,
        depth: int,
        streams: Tensor,
        next_ids: Tensor,
        context: AttentionContext,
        trace: Trace | None = None,
    ) -> Tensor:
        """Runs MTP block `depth` on streams X_t [R, n, D] and ids of tokens t+1 [R]; returns its streams.

        A row whose next token is not known may carry any id: nothing reads what it stores until that token comes.
        """
        block = self.mtp[depth]
        assert isinstance(block, MTPBlock)
        return block.draft(streams, self.embedding(next_ids), context, trace)

    def mtp_hidden(self, depth: int, streams: Tensor) -> Tensor:
        """Streams of MTP block `depth` [R, n, D] -> [R, D]; `logits` of it predict the token after next."""
        block = self.mtp[depth]
        assert isinstance(block, MTPBlock)
        return block.hidden(streams)

    def adopt(self, other: "Transformer") -> None:
        """Takes all weights, and their layout, from a model of the same configuration, which is used no more."""
        for name, child in other.named_children():
            setattr(self, name, child)
        for name, parameter in other.named_parameters(recurse=False):
            setattr(self, name, parameter)

    def freeze(self) -> "Transformer":
        """Stacks weights that share an input and lays all out for serving; call again after weights change.

        Bits stay the same.
        """
        self.requires_grad_(False)
        self.head.weight.data = by_columns(self.head.weight)
        for module in self.modules():
            if isinstance(module, Block | HybridAttention | LatentAttention | Linear | Router | Experts | DenseMlp):
                module.freeze()
        return self.eval()
