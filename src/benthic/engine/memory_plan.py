"""How an engine shares its machine's memory: weights are there, a pass needs room to work, the cache gets the rest."""

import torch

from benthic.cache.budget import Budget, CacheUse, plan_budget, unit_bytes
from benthic.cache.dry_run import measure_workspace
from benthic.cache.geometry import CacheGeometry
from benthic.cache.memory import available_bytes
from benthic.cache.storage import key_storage
from benthic.cache.workspace import Workspace, context_bytes
from benthic.engine.config import EngineConfig
from benthic.engine.row_buckets import row_buckets
from benthic.errors import ConfigError
from benthic.models.context import AttentionContext, Rows
from benthic.models.rotary import layer_frequencies
from benthic.models.transformer import Transformer

GRAPH_LAYER_BYTES = 256 << 10
"""Of a graph for one layer: some dozens of kernels and their arguments."""

AMPLE = 0.5
"""A cache that wants no more than this share of what is available leaves room enough for any pass."""


def plan_memory(
    model: Transformer, geometry: CacheGeometry, config: EngineConfig, *, measures_pass: bool = False
) -> Budget:
    """Sizes the cache. If asked to, and where memory is short, the largest pass is run to see what it takes.

    Raises:
        ConfigError: `max_model_len` is beyond the model's limit, or the memory does not hold one such context.
    """
    limit = model.config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > limit:
        raise ConfigError(
            f"max_model_len ({config.max_model_len}) must be <= the model's max_position_embeddings ({limit})"
        )
    available = available_bytes(model.device)
    if not measures_pass:
        budget = _plan(model, geometry, config, available, None)
        if config.cache_bytes is not None or budget.pool_bytes <= AMPLE * available:
            return budget
    return _plan(model, geometry, config, available, _pass_bytes(model, geometry, config))


def _plan(
    model: Transformer, geometry: CacheGeometry, config: EngineConfig, available: int, pass_bytes: int | None
) -> Budget:
    limit = model.config.max_position_embeddings
    use = CacheUse(
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        max_len=limit if config.max_model_len is None else config.max_model_len,
        retention_interval=config.window_interval,
    )
    longest = context_bytes(
        model.config,
        geometry,
        use.max_len,
        num_rows=config.max_batched_tokens,
        workspace_bytes=config.workspace_bytes,
        device=model.device,
        min_rows=model.min_rows,
    )
    storage = key_storage(config.cache_storage, geometry, model.dtype, model.numerics.policy)
    return plan_budget(
        geometry,
        use,
        unit_bytes(geometry, storage),
        available_bytes=available,
        weight_bytes=sum(tensor.nbytes for tensor in model.state_dict().values()),
        workspace=Workspace(pass_bytes, longest, _captured_bytes(model, config, use.max_len, pass_bytes)),
        cache_bytes=config.cache_bytes,
        may_shorten=config.max_model_len is None,
    )


def _captured_bytes(model: Transformer, config: EngineConfig, max_len: int, pass_bytes: int | None) -> int:
    """Of all captured passes: what the largest takes, which the others share, what stays of it, and the graphs."""
    if model.device.type != "cuda" or not config.cuda_graphs:
        return 0
    buckets = row_buckets(config, max_len)
    most, sizes = buckets.rows[-1], model.config
    kept = most * (4 * sizes.vocab_size + model.dtype.itemsize * sizes.hc_mult * sizes.hidden_size)
    passing = (pass_bytes or 0) * most // config.max_batched_tokens + config.workspace_bytes
    num_layers = len(sizes.layers) + len(sizes.mtp_layers)
    return 2 * kept + passing + len(buckets.rows) * len(buckets.contexts) * num_layers * GRAPH_LAYER_BYTES


def _pass_bytes(model: Transformer, geometry: CacheGeometry, config: EngineConfig) -> int:
    """Of the largest pass, with a token drawn from every row that may give one."""
    num_sampled = min(config.max_batched_tokens, config.max_num_seqs * (1 + config.max_draft_len))

    def forward(rows: Rows, context: AttentionContext) -> torch.Tensor:
        streams = model(rows, context)
        if config.drafter == "mtp":
            model.mtp_forward(0, streams, rows.token_ids, context)
        return model.logits(model.hidden(streams[:num_sampled]))

    return measure_workspace(
        model.config,
        geometry,
        max(config.max_batched_tokens, model.min_rows),
        {ratio: layer_frequencies(model.config, ratio).to(model.device) for ratio in geometry.layer_ratios},
        forward,
        dtype=model.dtype,
        device=model.device,
        storage=config.cache_storage,
        numerics=model.numerics.policy,
        workspace_bytes=config.workspace_bytes,
    )
