"""What the engine needs of a model."""

from typing import Protocol

import torch
from torch import Tensor

from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext, Rows
from benthic.models.trace import Trace


class ServingModel(Protocol):
    """A model that serves (`benthic.models.transformer.Transformer` does)."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def min_rows(self) -> int: ...
    def __call__(self, rows: Rows, context: AttentionContext, trace: Trace | None = None) -> Tensor: ...
    def hidden(self, streams: Tensor) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
