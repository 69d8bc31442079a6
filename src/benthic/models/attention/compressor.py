"""The compressor: one kv entry a block of tokens (model.md 2.5)."""

import torch
from torch import Tensor, nn

from benthic.kernels.compress_kv import CompletedBlocks, compress_kv
from benthic.kernels.rope import RopeTable, apply_rope
from benthic.models.config import ModelConfig
from benthic.models.linear import Linear
from benthic.models.norm import RMSNorm


class Compressor(nn.Module):
    """Parameters and pooling. Its two products run in fp32 and are stacked with others by the caller."""

    def __init__(self, config: ModelConfig, ratio: int, dim: int) -> None:
        super().__init__()
        self.width = (2 if ratio == 4 else 1) * dim
        self.wkv = Linear(config.hidden_size, self.width)
        self.wgate = Linear(config.hidden_size, self.width)
        self.ape = nn.Parameter(torch.empty(ratio, self.width))
        self.norm = RMSNorm(dim, config.rms_norm_eps)

    def entries(self, raw: Tensor, blocks: CompletedBlocks, rope: RopeTable, dtype: torch.dtype) -> Tensor:
        """Entries [m, dim] in `dtype` of the completed blocks; `raw` is the buffer of rows A | B, fp32."""
        pooled = compress_kv(raw, self.ape, blocks).to(dtype)
        return apply_rope(self.norm(pooled), rope)
