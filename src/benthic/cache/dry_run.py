"""What the largest pass takes beside the cache, by running it."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.memory import measure_peak_bytes
from benthic.cache.paged_context import PagedContext
from benthic.cache.pools import CachePools
from benthic.cache.storage import Storage
from benthic.cache.tables import PageTables
from benthic.kernels.sparse_attention import DEFAULT_WORKSPACE_BYTES
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext, Rows
from benthic.models.rows import build_rows


def measure_workspace(
    config: ModelConfig,
    geometry: CacheGeometry,
    num_rows: int,
    frequencies: Mapping[int, Tensor],
    forward: Callable[[Rows, AttentionContext], object],
    *,
    dtype: torch.dtype,
    device: torch.device,
    storage: Storage = "wide",
    numerics: str = "plain",
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
) -> int:
    """Bytes that a pass of `num_rows` prompt rows holds at its peak, cache and weights aside.

    The rows are one chunk at the start of a context. What attention takes more further back: `context_bytes`.

    Args:
        forward: the model's pass, up to what it keeps.
        workspace_bytes: bound that attention keeps.
    """
    length = min(num_rows, config.max_position_embeddings)
    pages = geometry.num_pages(length)
    chunks = [(start, min(length, num_rows - start)) for start in range(0, num_rows, length)]
    num_windows = pages * len(chunks) if geometry.window else 0
    capacity = CacheCapacity(pages * len(chunks), num_windows, len(chunks), length)
    pools = CachePools(geometry, capacity, dtype=dtype, device=device, storage=storage, numerics=numerics)
    pools.touch()
    tables = PageTables(len(chunks), pages)
    ids = np.arange(1, pages * len(chunks) + 1).reshape(len(chunks), pages)
    tables.pages[:], tables.windows[:] = ids, ids if geometry.window else 0

    def run() -> None:
        # Many different tokens: every expert is hit.
        runs = [(row, 0, [t % config.vocab_size for t in range(count)]) for row, (_, count) in enumerate(chunks)]
        rows = build_rows(runs, 1, device)
        with torch.inference_mode():
            context = PagedContext(config, rows, pools, tables, frequencies, workspace_bytes=workspace_bytes)
            forward(rows, context)

    return measure_peak_bytes(run, device)
