"""What a pass takes beside the cache: measured where a context begins, and bounded for attention far behind it."""

from dataclasses import dataclass

import torch

from benthic.cache.geometry import CacheGeometry
from benthic.kernels.sparse_attention.plan import tiles_of_a_group
from benthic.kernels.sparse_attention.tiles import BLOCK, num_entry_blocks, window_blocks
from benthic.kernels.sparse_attention.workspace import (
    attention_block_bytes,
    index_block_bytes,
    portion,
    single_rows_bytes,
)
from benthic.models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Workspace:
    """Bytes of the largest pass beside the cache.

    `pass_bytes`: at the start of a context, by a dry run; None: not measured. `context_bytes`: at most what it takes
    more at the longest context (`context_bytes`). `captured_bytes`: what captured passes hold, if there are any.
    """

    pass_bytes: int | None = None
    context_bytes: int = 0
    captured_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """What is set aside."""
        return (self.pass_bytes or 0) + self.context_bytes + self.captured_bytes


NO_WORKSPACE = Workspace()
CPU = torch.device("cpu")


def context_bytes(
    config: ModelConfig,
    geometry: CacheGeometry,
    max_len: int,
    *,
    num_rows: int,
    workspace_bytes: int,
    device: torch.device = CPU,
    min_rows: int = 1,
) -> int:
    """The most that temporaries take which grow with the context, at contexts of `max_len` tokens.

    They never live at once: layers, groups of tiles and the indexer's pieces come one after the other.

    Args:
        num_rows: of a pass at most; each may be a tile of its own.
        workspace_bytes: the bound that attention keeps.
        device: where it runs.
        min_rows: rows that a product is filled up to.
    """
    found = [0]
    for layer in geometry.layers:
        blocks = num_entry_blocks(max_len - 1, layer.ratio, geometry.window)
        heads = max(config.num_attention_heads, min_rows)
        kinds = [(attention_block_bytes, heads, config.entry_dim, blocks + window_blocks(geometry.window))]
        if layer.index:
            kinds.append((index_block_bytes, max(config.index_n_heads, min_rows), config.index_head_dim, blocks))
        for block_bytes, heads, dim, num_blocks in kinds:
            for rows_per_tile, num_tiles in ((BLOCK, tiles_of_a_group(device)), (1, num_rows)):
                size = block_bytes(rows_per_tile, heads, dim)
                cut = portion(num_tiles, num_blocks, size, workspace_bytes)
                found.append(cut.num_tiles * min(cut.num_blocks, num_blocks) * size)
        visible = max_len // layer.ratio if layer.ratio else 0
        visible = min(visible, config.index_topk) if layer.index else visible
        alone = single_rows_bytes(geometry.window + visible, config.num_attention_heads, config.entry_dim)
        found.append(min(alone, workspace_bytes))  # rows that take more are attended by products
    return max(found)
