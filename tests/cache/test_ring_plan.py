"""Rings: the plan of a pass against a brute-force account of who wrote what, and the bound on their length."""

import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from benthic.cache.geometry import CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.ring_plan import ChunkArrays, completed_entries, ring_writes, snapshot_writes, spans
from benthic.models.context import Chunk

NOTHING = (-1, -1)
"""What an unwritten ring row holds."""


@dataclass
class Ring:
    """A ring whose rows name the (sequence, position, attempt) that wrote them: attempt 0 is the accepted token."""

    ratio: int
    ring_len: int
    num_rows: int = 1
    rows: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    num_wrong: int = 0

    def run(self, chunks: list[Chunk], num_accepted: list[int]) -> list[tuple[int, int]]:
        """One pass; counts block rows that are not the accepted ones. Returns the completed (sequence, block)."""
        arrays = ChunkArrays.of(chunks)
        overlap = self.ratio == 4
        found = completed_entries(arrays, self.ratio, overlap=overlap, ring_len=self.ring_len)
        own = [
            (chunk.sequence, chunk.start + place, int(place >= accepted))
            for chunk, accepted in zip(chunks, num_accepted, strict=True)
            for place in range(chunk.length)
        ]
        laid = [self.rows.get(slot, NOTHING) for slot in found.history.tolist()] + own
        for sequence, index, sources in zip(found.sequence, found.index, found.sources, strict=True):
            first = index * self.ratio - (self.ratio if overlap else 0)
            for position, source in enumerate(sources.tolist(), first):
                if position >= 0 and laid[source][:2] != (sequence, position):
                    self.num_wrong += 1
                elif position >= 0 and source < len(found.history):
                    self.num_wrong += laid[source][2]  # a rejected row where an accepted one belongs
        writes = ring_writes(arrays, self.ring_len)
        assert len(set(writes.slots.tolist())) == len(writes.slots), "one slot is written twice in one pass"
        for row, slot in zip(writes.rows.tolist(), writes.slots.tolist(), strict=True):
            self.rows[slot] = own[row]
        return list(zip(found.sequence.tolist(), found.index.tolist(), strict=True))


class RingInPlace(Ring):
    """The same, but a pass writes all its rows first and then finds every row of its blocks in the ring."""

    def run(self, chunks: list[Chunk], num_accepted: list[int]) -> list[tuple[int, int]]:
        done = []
        for chunk, accepted in zip(chunks, num_accepted, strict=True):
            first_slot, end = chunk.sequence * self.ring_len, chunk.start + chunk.length
            for place, position in enumerate(range(chunk.start, end)):
                self.rows[first_slot + position % self.ring_len] = (chunk.sequence, position, int(place >= accepted))
            for index in range(chunk.start // self.ratio, end // self.ratio):
                for position in range((index - (self.ratio == 4)) * self.ratio, (index + 1) * self.ratio):
                    found = self.rows.get(first_slot + position % self.ring_len, NOTHING)
                    is_own = position >= chunk.start
                    self.num_wrong += position >= 0 and found[:2] != (chunk.sequence, position)
                    self.num_wrong += position >= 0 and not is_own and len(found) > 2 and found[2]
                done.append((chunk.sequence, index))
        return done


def min_ring_len(ratio: int, draft_len: int) -> int:
    layer = LayerCache(ratio, ratio == 4, 1, 0)
    return CacheGeometry(
        page_size=128, window=8, layers=(layer,), num_main_layers=1, max_draft_len=draft_len
    ).min_ring_len(ratio)


def verify(ring: Ring, rng: random.Random, draft_len: int, num_tokens: int) -> None:
    """A sequence that grows by verification, with random numbers of rows and of accepted ones."""
    start = 0
    while start < num_tokens:
        length = rng.choice([1, draft_len + 1, rng.randint(1, draft_len + 1)])
        accepted = rng.choice([1, length, rng.randint(1, length)])
        ring.run([Chunk(0, 0, start, length)], [accepted])
        start += accepted


def worst_case(ring: Ring, draft_len: int) -> None:
    """All drafts are rejected just before a block ends: they reach furthest into the rows that it reads."""
    last = 4 * ring.ratio - 1
    for start in range(last - 1):
        ring.run([Chunk(0, 0, start, 1)], [1])
    ring.run([Chunk(0, 0, last - 1, draft_len + 1)], [1])
    ring.run([Chunk(0, 0, last, 1)], [1])


@pytest.mark.parametrize("ratio", [4, 16, 128])
@pytest.mark.parametrize("draft_len", range(10))
def test_the_ring_bound_holds_and_is_tight(ratio: int, draft_len: int) -> None:
    rng = random.Random(draft_len)
    safe, short = Ring(ratio, min_ring_len(ratio, draft_len)), Ring(ratio, min_ring_len(ratio, draft_len) - 1)
    for ring in (safe, short):
        verify(ring, rng, draft_len, max(4 * ratio, 320))
        ring.rows.clear()
        worst_case(ring, draft_len)
    assert safe.num_wrong == 0
    assert short.num_wrong > 0


@pytest.mark.parametrize("ratio", [4, 16, 128])
@pytest.mark.parametrize("draft_len", range(10))
def test_one_row_more_lets_a_pass_write_before_it_reads_and_is_needed(ratio: int, draft_len: int) -> None:
    rng = random.Random(draft_len)
    safe, short = (RingInPlace(ratio, min_ring_len(ratio, draft_len) + more) for more in (1, 0))
    for ring in (safe, short):
        verify(ring, rng, draft_len, max(4 * ratio, 320))
        ring.rows.clear()
        # The pass that completes a block has as many rows behind it as it can.
        ring.run([Chunk(0, 0, start, 1) for start in range(4 * ratio - 1)], [1] * (4 * ratio - 1))
        ring.run([Chunk(0, 0, 4 * ratio - 1, draft_len + 1)], [1])
    assert safe.num_wrong == 0
    assert short.num_wrong > 0


@pytest.mark.parametrize("ratio", [4, 16])
def test_every_cut_of_a_sequence_completes_each_block_once_from_its_own_rows(ratio: int) -> None:
    """All starts up to 3 pages and all lengths up to 2 pages of 16."""
    for start in range(49):
        for length in range(1, 33):
            ring = Ring(ratio, min_ring_len(ratio, 0))
            done = ring.run([Chunk(0, 0, 0, start)], [start]) if start else []
            done += ring.run([Chunk(0, 0, start, length)], [length])
            assert ring.num_wrong == 0, (start, length)
            assert done == [(0, index) for index in range((start + length) // ratio)]


def test_sequences_of_one_pass_do_not_mix() -> None:
    rng = random.Random(1)
    ring = Ring(4, 8, num_rows=5)
    at = [0] * 5
    for _ in range(200):
        chunks, start_row = [], 0
        for sequence in rng.sample(range(5), rng.randint(1, 5)):
            chunks.append(Chunk(sequence, start_row, at[sequence], rng.randint(1, 12)))
            start_row += chunks[-1].length
            at[sequence] += chunks[-1].length
        done = ring.run(chunks, [chunk.length for chunk in chunks])
        assert done == [
            (chunk.sequence, index)
            for chunk in chunks
            for index in range(chunk.start // 4, (chunk.start + chunk.length) // 4)
        ]
    assert ring.num_wrong == 0


@pytest.mark.parametrize("start", [0, 8, 13, 28])
def test_rows_before_the_stored_length_complete_nothing(start: int) -> None:
    ring = Ring(4, 8)
    done = ring.run([Chunk(0, 0, start, 50 - start, stored_len=32)], [50 - start])
    assert done == [(0, index) for index in range(8, 12)]
    assert ring.num_wrong == 0


def test_a_replay_that_ends_inside_the_pass_leaves_its_last_rows_in_the_ring() -> None:
    ring = Ring(4, 8)
    assert ring.run([Chunk(0, 0, 20, 12, stored_len=32)], [12]) == []
    assert ring.run([Chunk(0, 0, 32, 5, stored_len=32)], [5]) == [(0, 8)]
    assert ring.num_wrong == 0


def test_a_long_chunk_writes_no_more_than_the_ring_holds() -> None:
    writes = ring_writes(ChunkArrays.of([Chunk(2, 0, 100, 50), Chunk(1, 50, 3, 2)]), 8)
    assert writes.rows.tolist() == [*range(42, 50), 50, 51]
    assert sorted(writes.slots.tolist()) == [11, 12, *range(16, 24)]


def test_snapshots_take_the_four_rows_before_a_page_boundary() -> None:
    position = np.arange(10, 34)
    window_id = np.array([7] * 6 + [3] * 16 + [5] * 2)
    writes = snapshot_writes(position, window_id, 16)
    assert position[writes.rows].tolist() == [12, 13, 14, 15, 28, 29, 30, 31]
    assert writes.slots.tolist() == [28, 29, 30, 31, 12, 13, 14, 15]


def test_spans_lie_end_to_end() -> None:
    assert spans(np.array([5, 9, 0]), np.array([2, 0, 3])).tolist() == [5, 6, 0, 1, 2]
    assert spans(np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
