"""Runs one pass of the model over the cache and samples."""

from typing import Protocol

import torch
from torch import Tensor

from benthic.cache.block_manager import CacheManager
from benthic.cache.buffers import CacheBuffers
from benthic.engine.batch import build_batch
from benthic.engine.plan import StepPlan, StepResult
from benthic.engine.sampler import sample_tokens
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext, Rows
from benthic.models.rotary import layer_frequencies


class ServingModel(Protocol):
    """What the engine needs of a model (`benthic.models.transformer.Transformer` has it)."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def min_rows(self) -> int: ...
    def __call__(self, rows: Rows, context: AttentionContext) -> Tensor: ...
    def hidden(self, streams: Tensor) -> Tensor: ...
    def logits(self, hidden: Tensor) -> Tensor: ...


class ModelRunner:
    """A model with the tensors of one cache."""

    def __init__(self, model: ServingModel, cache: CacheManager) -> None:
        self._model = model
        self._cache = cache
        self._buffers = CacheBuffers(cache.layout, dtype=model.dtype, device=model.device)
        ratios = {layer.ratio for layer in cache.layout.layers}
        self._frequencies = {ratio: layer_frequencies(model.config, ratio).to(model.device) for ratio in ratios}

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Computes the plan's rows, writes their entries into the cache and samples where the plan says so."""
        model = self._model
        self._buffers.clear(self._cache.take_fresh())
        batch = build_batch(plan, model.config, self._cache, self._buffers, self._frequencies, model.min_rows)
        streams = model(batch.rows, batch.context)
        if not batch.sequences:
            return StepResult(())
        hidden = model.hidden(streams.index_select(0, batch.sampled_rows))
        logits = model.logits(hidden)[: len(batch.sequences)]
        return StepResult(sample_tokens(logits, batch.sequences))
