"""The parts of an engine, made for one model: cache, pools, runner, scheduler, speculation."""

import hashlib
import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from benthic.cache.geometry import CacheCapacity, CacheGeometry, geometry
from benthic.cache.manager import CacheManager
from benthic.cache.pools import CachePools
from benthic.cache.retention import retention
from benthic.cache.work import CacheWork
from benthic.engine.config import EngineConfig
from benthic.engine.drafting import DepthPolicy, Drafter, MtpDrafter, NgramDrafter, NoDrafter
from benthic.engine.extras import ExtrasCollector
from benthic.engine.graphs import CudaGraphs, Graphs
from benthic.engine.pending import PendingStep
from benthic.engine.plan import StepPlan
from benthic.engine.row_buckets import row_buckets
from benthic.engine.runner import ModelRunner, Runner
from benthic.engine.scheduler import Scheduler
from benthic.engine.speculation import Speculation
from benthic.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine drives. Made anew when a failed step may have left them in any state."""

    cache: CacheManager
    runner: Runner
    scheduler: Scheduler
    speculation: Speculation
    overlap_steps: int
    """Passes in flight while the next is planned."""


def assemble(
    model: Transformer,
    config: EngineConfig,
    capacity: CacheCapacity,
    drafter: Drafter,
    namespace: tuple[str, int],
    graphs: Graphs | None = None,
) -> EngineParts:
    """Builds all parts; memory for the pools is taken here. `graphs`: instead of what the device has."""
    keeps_extras = config.keep_routes or config.keep_picks
    cache = CacheManager(
        cache_geometry(model, config),
        capacity,
        retention(config.retention, page_size=config.page_size, interval=config.window_interval),
        keeps_extras=keeps_extras,
    )
    runner = make_runner(model, config, capacity, drafter, cache, graphs)
    scheduler = Scheduler(
        cache,
        max_num_seqs=config.max_num_seqs,
        max_batched_tokens=config.max_batched_tokens,
        prefill_chunk=config.prefill_chunk,
        admission_headroom=config.admission_headroom,
        aging_s=config.priority_aging_s,
        use_cache=config.prefix_cache,
        namespace=namespace,
    )
    policy = DepthPolicy(config.max_draft_len, is_adaptive=config.draft_adaptive, is_chained=drafter.sees_passes)
    return EngineParts(cache, runner, scheduler, Speculation(drafter, policy), _overlap_steps(model.device, config))


def make_runner(
    model: Transformer,
    config: EngineConfig,
    capacity: CacheCapacity,
    drafter: Drafter,
    cache: CacheManager,
    graphs: Graphs | None = None,
) -> Runner:
    """What computes, with the tensors of the cache, which belong to it alone."""
    pools = CachePools(
        cache.geometry,
        capacity,
        dtype=model.dtype,
        device=model.device,
        storage=config.cache_storage,
        numerics=model.numerics.policy,
    )
    return ModelRunner(
        model,
        pools,
        cache.tables,
        drafter,
        ExtrasCollector(model.config, capacity.max_len, keep_routes=config.keep_routes, keep_picks=config.keep_picks),
        num_threads=config.num_threads,
        overlaps=_overlap_steps(model.device, config) > 0,
        workspace_bytes=config.workspace_bytes,
        graphs=_graphs(model.device, config) if graphs is None else graphs,
        buckets=row_buckets(config, capacity.max_len),
    )


class AbsentRunner:
    """Stands in for a runner whose memory was given back; nothing is launched meanwhile."""

    def launch(self, plan: StepPlan, work: CacheWork, depths: Seq[int] = ()) -> PendingStep:
        """See `Runner`."""
        raise AssertionError("a pass is launched while there is no memory for it")

    def warm_up(self, say: Callable[[str], None]) -> None:
        """See `Runner`."""

    def weights_changed(self) -> None:
        """See `Runner`."""

    def close(self) -> None:
        """See `Runner`."""


def make_drafter(model: Transformer, config: EngineConfig) -> Drafter:
    """The drafter that the configuration names.

    Raises:
        ConfigError: the model has no prediction blocks to draft with.
    """
    match config.drafter:
        case "none":
            return NoDrafter()
        case "ngram":
            return NgramDrafter()
        case "mtp":
            return MtpDrafter(model)


def cache_geometry(model: Transformer, config: EngineConfig) -> CacheGeometry:
    """Shape of the cache: of all the model's layers, with rings that bear the longest run of drafts."""
    return geometry(model.config, page_size=config.page_size, max_draft_len=config.max_draft_len)


def fingerprint(model: Transformer, config: EngineConfig) -> str:
    """Names everything but the weights that cached entries depend on."""
    facts = {
        "model": model.config.to_json(weights="fp32"),
        "numerics": model.numerics.policy,
        "weights": model.numerics.weights,
        "dtype": str(model.dtype),
        "storage": config.cache_storage,
    }
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


def _graphs(device: torch.device, config: EngineConfig) -> Graphs | None:
    return CudaGraphs(device) if config.cuda_graphs and device.type == "cuda" else None


def _overlap_steps(device: torch.device, config: EngineConfig) -> int:
    """With drafts a request waits for its results anyway; two passes at once would only halve the batches."""
    if config.overlap_steps is not None:
        return config.overlap_steps
    return 1 if device.type != "cpu" and config.drafter == "none" else 0
