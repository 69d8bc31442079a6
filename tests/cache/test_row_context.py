"""The plan of single rows against the plan that the host makes of the same chunks."""

import random

import numpy as np
import pytest
import torch

from benthic.cache.geometry import CacheCapacity, geometry
from benthic.cache.paged_context import PagedContext
from benthic.cache.pools import CachePools
from benthic.cache.row_context import RowContext, RowTables, plan_shape
from benthic.cache.tables import PageTables
from benthic.kernels.entry_write import BlockEnds
from benthic.kernels.pass_plan import Column, PlanBuffers, plan_rows
from benthic.kernels.pass_plan.layout import REAL, RELAYED
from benthic.models.config import ModelConfig
from benthic.models.context import Chunk, Rows
from benthic.models.rotary import layer_frequencies
from tests.engine.conftest import CONFIG
from tests.exactness.families import CONFIGS

MAX_LEN = 512
MAX_DRAFTS = 3


class World:
    """A cache whose every page and window is handed out at random, and the pass of some chunks planned both ways."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.rng, self.config = random.Random(seed), config
        self.geometry = geometry(config, page_size=128, max_draft_len=MAX_DRAFTS)
        num_rows, pages = 6, MAX_LEN // 128
        windows = num_rows * pages if self.geometry.window else 0
        self.capacity = CacheCapacity(num_rows * pages, windows, num_rows, MAX_LEN)
        self.pools = CachePools(self.geometry, self.capacity, dtype=torch.float32, device=torch.device("cpu"))
        self.tables = PageTables(num_rows, pages)
        for table in (self.tables.pages, self.tables.windows):
            ids = list(range(1, num_rows * pages + 1))
            self.rng.shuffle(ids)
            table[:] = np.array(ids).reshape(num_rows, pages)
        self.frequencies = {ratio: layer_frequencies(config, ratio) for ratio in self.geometry.layer_ratios}
        self.row_tables = RowTables.of(self.frequencies)

    def chunks(self) -> list[Chunk]:
        """Short runs of some sequences, often across a boundary of blocks or pages."""
        found, start_row = [], 0
        for row in self.rng.sample(range(6), self.rng.randint(1, 6)):
            length = self.rng.randint(1, 1 + MAX_DRAFTS)
            start = self.rng.choice([0, 3, 4, 7, 124, 126, 127, 128, 255, 256, self.rng.randrange(MAX_LEN - 8)])
            found.append(Chunk(row, start_row, start, length))
            start_row += length
        return found

    def host(self, chunks: list[Chunk]) -> PagedContext:
        total = sum(chunk.length for chunk in chunks)
        positions = [chunk.start + place for chunk in chunks for place in range(chunk.length)]
        rows = Rows(torch.zeros(total, dtype=torch.int64), torch.tensor(positions), total, tuple(chunks))
        return PagedContext(self.config, rows, self.pools, self.tables, self.frequencies, in_place=True)

    def own(self, chunks: list[Chunk], num_dummies: int) -> tuple[RowContext, PlanBuffers, torch.Tensor]:
        given = torch.tensor(
            [
                [7, chunk.start + place, chunk.sequence, REAL, place, -1, *[0] * 6, 1]
                for chunk in chunks
                for place in range(chunk.length)
            ]
        )
        dummy = given[:1].clone()
        dummy[:, Column.FLAGS] = 0
        given = torch.cat([given, *[dummy] * num_dummies])
        shape = plan_shape(self.geometry, self.row_tables, self.config.rope_amplitude)
        buffers = PlanBuffers(shape, 64, torch.device("cpu"))
        mirror = self.pools.device_tables(self.tables)
        newest = torch.arange(100, 106)
        plan_rows(given, newest, mirror.windows, mirror.pages, self.row_tables.frequencies, buffers)
        plan = buffers.head(len(given))
        context = RowContext(
            plan, self.pools, mirror, self.row_tables.table, MAX_LEN, workspace_bytes=1 << 20, in_place=True
        )
        return context, buffers, given


@pytest.mark.parametrize("config", [CONFIG, CONFIGS["V3.2"]], ids=["v4", "v3.2"])
@pytest.mark.parametrize("seed", range(30))
def test_rows_get_the_places_that_the_host_gives_them(config: ModelConfig, seed: int) -> None:
    world = World(config, seed)
    chunks = world.chunks()
    host, (own, buffers, given) = world.host(chunks), world.own(chunks, num_dummies=seed % 3)
    count = sum(chunk.length for chunk in chunks)
    plan, index = buffers.head(len(given)), host._index
    assert (plan.window_slots[count:] == -1).all() and (plan.token_slots[count:] == -1).all()
    if world.geometry.window:
        assert torch.equal(plan.window_slots[:count], index["window"])
    if "snapshot rows" in index:
        kept = (plan.snapshot_slots >= 0).nonzero()[:, 0]
        assert torch.equal(kept, index["snapshot rows"])
        assert torch.equal(plan.snapshot_slots[kept], index["snapshot slots"])
    if 1 in world.geometry.ratios:
        assert torch.equal(plan.token_slots[:count], index["entries 1"])
    for ratio in world.geometry.layer_ratios:
        for mine, theirs in zip(own.rope(ratio), host.rope(ratio), strict=True):
            assert torch.equal(mine[:count], theirs)
    for shape in buffers.shape.compressed:
        _check_entries(world, shape.ratio, own, host, chunks, count)


def _check_entries(
    world: World, ratio: int, own: RowContext, host: PagedContext, chunks: list[Chunk], count: int
) -> None:
    entry, index = own._plan.entries[ratio], host._index
    # Of the rows that write the same ring slot in one pass the last one counts; runs are shorter than rings here.
    assert torch.equal(entry.ring_slots[:count], index[f"ring slots {ratio}"])
    assert (entry.ring_slots[count:] == -1).all()
    done = (entry.slots >= 0).nonzero()[:, 0]
    assert torch.equal(entry.slots[done], index[f"entries {ratio}"])
    assert own.places is not None and host.places is not None
    _check_ends(own.places.block_ends(ratio), host.places.block_ends(ratio), count)
    blocks, mine = host.completed(ratio), own.completed(ratio)
    assert mine is not None
    if blocks is None:
        assert not len(done)
        return
    assert torch.equal(mine.positions[done], blocks.positions)
    for here, there in zip(own.entry_rope(ratio), host.entry_rope(ratio), strict=True):
        assert torch.equal(here[done], there)
    ring_len = world.geometry.ring_len(ratio)
    history = index[f"history {ratio}"]
    position = torch.tensor([chunk.start + place for chunk in chunks for place in range(chunk.length)])
    sequence = torch.tensor([chunk.sequence for chunk in chunks for place in range(chunk.length)])
    laid = torch.cat([history, sequence * ring_len + position % ring_len])
    assert torch.equal(mine.sources[done], laid[blocks.sources])
    if mine.first is not None:
        wanted = torch.zeros(len(done), 1, 1, dtype=torch.bool) if blocks.first is None else blocks.first
        assert torch.equal(mine.first[done], wanted)


def _check_ends(own: BlockEnds, host: BlockEnds, count: int) -> None:
    """What fused kernels are told of the blocks is the same, but for the rows in which none ends."""
    done = (own.ends >= 0).nonzero()[:, 0]
    assert own.by_rows and not host.by_rows
    assert torch.equal(own.ends[done], host.ends) and torch.equal(own.ends[done], done)
    assert torch.equal(own.slots[done], host.slots)
    for name in ("positions", "before", "rings"):
        assert torch.equal(getattr(own, name)[:count], getattr(host, name)), name
    assert (own.rings[count:] == -1).all()
    assert (own.snapshots is None) == (host.snapshots is None)
    if own.snapshots is not None and host.snapshots is not None:
        assert torch.equal(own.snapshots[:count], host.snapshots) and (own.snapshots[count:] == -1).all()
    for mine, theirs in zip(own.rope, host.rope, strict=True):
        assert torch.equal(mine[done], theirs)


def test_a_relayed_row_takes_the_newest_token_of_its_request_row() -> None:
    world = World(CONFIG, 0)
    _, buffers, given = world.own([Chunk(2, 0, 5, 1), Chunk(4, 1, 9, 1)], 0)
    assert buffers.head(2).token_ids.tolist() == [7, 7]
    given[1, Column.FLAGS] = REAL | RELAYED
    mirror = world.pools.device_tables(world.tables)
    plan_rows(given, torch.arange(100, 106), mirror.windows, mirror.pages, world.row_tables.frequencies, buffers)
    assert buffers.head(2).token_ids.tolist() == [7, 104]
    assert buffers.head(2).draw.positions.tolist() == [6, 10]


def test_a_row_without_a_page_or_window_writes_nowhere() -> None:
    world = World(CONFIG, 0)
    world.tables.pages[:], world.tables.windows[:] = 0, 0
    _, buffers, _ = world.own([Chunk(2, 0, 127, 1)], 0)
    plan = buffers.head(1)
    slots = (plan.window_slots, plan.snapshot_slots, plan.entries[4].slots, plan.entries[128].slots)
    assert [int(slot) for slot in slots] == [-1, -1, -1, -1]
