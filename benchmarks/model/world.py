"""Full-width V4-Flash layers with dummy native weights, and a cache full of long contexts, on one GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from benthic.cache.geometry import CacheCapacity, geometry
from benthic.cache.paged_context import PagedContext
from benthic.cache.pools import CachePools
from benthic.cache.row_context import RowContext, RowTables, plan_shape
from benthic.cache.tables import PageTables
from benthic.engine.row_buckets import RowBuckets
from benthic.engine.side_stream import branches
from benthic.kernels.pass_plan import Column, PlanBuffers, plan_rows
from benthic.kernels.pass_plan.layout import REAL
from benthic.kernels.sparse_attention import DEFAULT_WORKSPACE_BYTES
from benthic.models.beside import in_line
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext, Chunk, Rows
from benthic.models.released import FLASH
from benthic.models.rotary import layer_frequencies
from benthic.models.transformer import Transformer

KINDS = {"SWA": 0, "CSA": 4, "HCA": 128}
"""Layer kinds and their compression ratios."""
IN_FLASH = {"SWA": 2, "CSA": 21, "HCA": 20}
"""How many layers of each kind V4-Flash has."""
PAGE = 128


def flash_layers(kinds: Sequence[str]) -> ModelConfig:
    """V4-Flash with one layer of each kind; a window layer routes by hash, as the first ones do."""
    ratios = tuple(KINDS[kind] for kind in kinds)
    return replace(
        FLASH,
        num_hidden_layers=len(kinds),
        compress_ratios=(*ratios, 0),
        num_hash_layers=sum(ratio == 0 for ratio in ratios),
        num_nextn_predict_layers=0,
    )


@dataclass
class World:
    """A model and its cache: `rows` contexts of up to `max_len` tokens, every page of them written."""

    model: Transformer
    pools: CachePools
    tables: PageTables
    max_len: int
    frequencies: dict[int, Tensor]
    in_place: bool = True
    one_stream: bool = False

    @property
    def device(self) -> torch.device:
        return self.model.device

    def decode(self, rows: int, context: int) -> AttentionContext:
        """One row of each of `rows` contexts, the last of about `context` tokens: as the engine captures it."""
        given = np.zeros((rows, len(Column)), dtype=np.int64)
        positions = context - 1 - (37 * np.arange(rows)) % PAGE
        given[:, Column.TOKEN] = np.arange(rows) * 641 % self.model.config.vocab_size
        given[:, Column.POSITION], given[:, Column.REQUEST_ROW], given[:, Column.FLAGS] = (
            positions,
            np.arange(rows),
            REAL,
        )
        given[:, Column.NEXT_DRAFT] = -1
        for row, position in enumerate(positions):
            self._open_windows(row, int(position), 1)
        tables = RowTables.of(self.frequencies)
        mirror = self.pools.device_tables(self.tables)
        buffers = PlanBuffers(plan_shape(self.pools.geometry, tables, 1.0), rows, self.device)
        newest = torch.zeros(len(self.tables.pages), dtype=torch.int64, device=self.device)
        sent = torch.from_numpy(given).to(self.device)
        plan_rows(sent, newest, mirror.windows, mirror.pages, tables.frequencies, buffers)
        bucket = RowBuckets.of(rows, self.max_len).find(rows, context)
        assert bucket is not None, "no context is longer than the cache was made for"
        return RowContext(
            buffers.head(rows),
            self.pools,
            mirror,
            tables.table,
            bucket[1],
            workspace_bytes=DEFAULT_WORKSPACE_BYTES,
            in_place=self.in_place,
            beside=in_line if self.one_stream else branches(self.device)(rows),
        )

    def prefill(self, chunk: int, context: int) -> AttentionContext:
        """The last `chunk` rows of a prompt of `context` tokens."""
        return self._context([(0, context - chunk, chunk)])

    def _context(self, runs: list[tuple[int, int, int]]) -> AttentionContext:
        chunks, row = [], 0
        for sequence, start, length in runs:
            self._open_windows(sequence, start, length)
            chunks.append(Chunk(sequence, row, start, length))
            row += length
        generator = torch.Generator(self.device).manual_seed(row)
        ids = torch.randint(self.model.config.vocab_size, (row,), generator=generator, device=self.device)
        positions = torch.cat([torch.arange(start, start + length) for _, start, length in runs]).to(self.device)
        rows = Rows(ids, positions, row, tuple(chunks))
        return PagedContext(self.model.config, rows, self.pools, self.tables, self.frequencies, in_place=self.in_place)

    def _open_windows(self, sequence: int, start: int, length: int) -> None:
        """Names windows for the pages that the run reads or writes, from the row's own."""
        first, last = max(0, start - PAGE) // PAGE, (start + length - 1) // PAGE
        own = self.pools.capacity.num_windows // len(self.tables.windows)
        for page in range(first, last + 1):
            self.tables.set_window(sequence, page, 1 + sequence * own + page % own)


def build_world(kinds: Sequence[str], rows: int, max_len: int, chunk: int = 0) -> World:
    """Draws weights and fills the cache. Pages of a context lie anywhere."""
    config = flash_layers(kinds)
    device = torch.device("cuda")
    model = dummy_model(config, device=device, numerics="quantized", weights="native").freeze()
    shape = geometry(config, page_size=PAGE)
    pages = shape.num_pages(max_len) + 1
    windows = 3 + -(-chunk // PAGE)
    capacity = CacheCapacity(rows * pages, rows * windows, rows, max_len)
    pools = CachePools(shape, capacity, dtype=model.dtype, device=device, storage="official", numerics="quantized")
    tables = PageTables(rows, pages)
    tables.pages[:] = 1 + np.random.default_rng(0).permutation(rows * pages).reshape(rows, pages)
    _fill(pools)
    frequencies = {ratio: layer_frequencies(config, ratio).to(device) for ratio in shape.layer_ratios}
    return World(model, pools, tables, max_len, frequencies)


def _fill(pools: CachePools, at_once: int = 1 << 16) -> None:
    """Every row of the cache: random entries and keys as they are stored."""
    generator = torch.Generator(pools.device).manual_seed(0)
    for layer, kind in enumerate(pools.geometry.layers):
        for buffer, width, pack in (
            (pools.kv[layer], kind.kv, pools.storage.pack_kv),
            (pools.index[layer], kind.index, pools.storage.pack_index),
        ):
            for part in () if buffer is None else buffer.split(at_once):
                rows = torch.randn(len(part), width, generator=generator, device=pools.device, dtype=torch.bfloat16)
                part.copy_(pack(rows))
        ring = pools.rings[layer]
        if ring is not None:
            ring.normal_(generator=generator)
