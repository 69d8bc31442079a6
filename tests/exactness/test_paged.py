"""Rows that begin in the middle are those of the whole sequence, bit for bit: hits, gaps, replays, forks, drafts.

The model is real, small and random; the cache is driven by hand, so that each way into it is surely taken.
"""

import random
from itertools import product

import pytest
import torch
from torch import Tensor

from benthic.cache.pools import CachePools
from benthic.cache.row import Row
from benthic.errors import ConfigError
from benthic.models.transformer import Transformer
from tests.exactness.passes import PagedPasses, differing_rows, packed
from tests.exactness.shapes import cases
from tests.exactness.test_rows import variant

PAGE = 128
VOCAB = 512


def random_ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(2, VOCAB) for _ in range(count)]


def alone(model: Transformer, ids: list[int]) -> Tensor:
    return packed(model, [ids])[0]


def same(model: Transformer, found: Tensor, ids: list[int], start: int) -> bool:
    """Whether logits from position `start` on are those of the sequence alone."""
    return differing_rows([found], [alone(model, ids)[start : start + len(found)]]) == 0


def test_a_hit_at_every_page_boundary_goes_on_exactly(small_model: Transformer) -> None:
    rng = random.Random(1)
    passes = PagedPasses(small_model, num_rows=1, max_len=800, policy="every_page")
    first = random_ids(rng, 5 * PAGE + 40)
    row = passes.open(first)
    assert same(small_model, passes.read(row, first, chunk=200), first, 0)
    passes.cache.close(row, finished=True)
    for boundary in range(PAGE, 6 * PAGE, PAGE):
        ids = first[:boundary] + random_ids(rng, 37)
        row = passes.open(ids)
        assert (row.start_len, row.stored_len) == (boundary, boundary)
        assert same(small_model, passes.read(row, ids, chunk=rng.choice([1 << 30, 20])), ids, boundary)
        passes.cache.close(row, finished=True)
    passes.cache.check()


DTYPES = (torch.float32, torch.bfloat16)
REPLAYS = [(torch.float32, "plain", 23), (torch.bfloat16, "quantized", 1 << 30)]


@pytest.mark.parametrize(
    ("dtype", "numerics", "chunk"), cases(product(DTYPES, ("plain", "quantized"), (1 << 30, 23)), REPLAYS)
)
def test_a_replay_is_exact_from_the_last_stored_row_on(
    small_model: Transformer, numerics: str, dtype: torch.dtype, chunk: int
) -> None:
    model, rng = variant(small_model, numerics, dtype), random.Random(2)
    passes = PagedPasses(model, num_rows=1, max_len=800, policy="none")
    first = random_ids(rng, 680)
    row = passes.open(first)
    passes.read(row, first)
    passes.cache.close(row, finished=True)
    ids = first[: 5 * PAGE] + random_ids(rng, 45)
    row = passes.open(ids)
    assert (row.start_len, row.stored_len) == (5 * PAGE - (4 * 127 + 1), 5 * PAGE)
    start = row.start_len
    logits = passes.read(row, ids, chunk)
    exact = 5 * PAGE - 1
    assert same(model, logits[exact - start :], ids, exact)
    assert not same(model, logits[:20], ids, start), "the first rows of a replay lack their window"


def test_a_replay_one_token_shorter_is_not_exact(small_model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: L(W - 1) + 1 tokens are needed, all of them."""
    from benthic.cache.geometry import CacheGeometry

    def last_row_is_exact(replay_len: int) -> bool:
        monkeypatch.setattr(CacheGeometry, "replay_len", replay_len)
        rng = random.Random(2)
        passes = PagedPasses(small_model, num_rows=1, max_len=800, policy="none")
        first = random_ids(rng, 680)
        row = passes.open(first)
        passes.read(row, first)
        passes.cache.close(row, finished=True)
        ids = first[: 5 * PAGE] + random_ids(rng, 45)
        row = passes.open(ids)
        start = row.start_len
        assert start == 5 * PAGE - replay_len
        logits = passes.read(row, ids)
        return same(small_model, logits[5 * PAGE - 1 - start :], ids, 5 * PAGE - 1)

    assert last_row_is_exact(4 * 127 + 1)
    assert not any(last_row_is_exact(length) for length in (4 * 127, 4 * 127 - 8, 2 * 127))


def test_a_gap_is_computed_without_touching_what_is_stored(small_model: Transformer) -> None:
    rng = random.Random(3)
    passes = PagedPasses(small_model, num_rows=2, max_len=800)
    first = random_ids(rng, 600)
    row = passes.open(first)
    passes.read(row, first, chunk=150)
    passes.cache.close(row, finished=True)
    entries = [kv[passes.pools.entry_base :].clone() for kv in passes.pools.kv]
    ids = first[: 3 * PAGE + 5] + random_ids(rng, 1)
    row = passes.open(ids)
    assert (row.start_len, row.stored_len) == (0, 3 * PAGE)
    assert same(small_model, passes.read(row, ids[: 3 * PAGE], chunk=70), ids, 0)
    assert all(torch.equal(a, kv[passes.pools.entry_base :]) for a, kv in zip(entries, passes.pools.kv, strict=True))
    assert same(small_model, passes.read(row, ids), ids, 3 * PAGE)


@pytest.mark.parametrize("draft_len", cases(range(1, 9), [3, 8]))
def test_rejected_drafts_leave_no_trace(small_model: Transformer, draft_len: int) -> None:
    """Two rows grow by verification with random drafts, of which a random number is right."""
    rng = random.Random(draft_len)
    passes = PagedPasses(small_model, num_rows=2, max_len=400, max_draft_len=draft_len)
    sequences = [random_ids(rng, 300), random_ids(rng, 270)]
    rows = [passes.open(ids, use_cache=False) for ids in sequences]
    parts: list[list[Tensor]] = [[], []]
    while any(row.committed_len < len(ids) for row, ids in zip(rows, sequences, strict=True)):
        step: list[tuple[int, int, list[int]]] = []
        for number, (row, ids) in enumerate(zip(rows, sequences, strict=True)):
            left = len(ids) - row.committed_len
            if left:
                right = rng.randint(1, min(draft_len + 1, left))
                known = ids[row.committed_len : row.committed_len + right]
                step.append((number, right, known + random_ids(rng, rng.randint(0, draft_len + 1 - right))))
        logits = passes.run([(rows[number], ids) for number, _, ids in step])
        for (number, right, _), piece in zip(step, logits, strict=True):
            parts[number].append(piece[:right])
            passes.cache.commit(rows[number], rows[number].committed_len + right, sequences[number])
    for ids, part in zip(sequences, parts, strict=True):
        assert same(small_model, torch.cat(part), ids, 0)


@pytest.mark.parametrize("length", [1, 128, 131, 254, 257])
def test_forks_go_their_own_ways_exactly(small_model: Transformer, length: int) -> None:
    rng = random.Random(length)
    passes = PagedPasses(small_model, num_rows=3, max_len=400)
    trunk = random_ids(rng, length)
    row = passes.open(trunk + [2])
    passes.read(row, trunk)
    rows: list[Row] = [row]
    for _ in range(2):
        child = passes.cache.fork(row)
        assert child is not None
        rows.append(child)
    sequences = [trunk + random_ids(rng, 90) for _ in rows]
    parts: list[list[Tensor]] = [[], [], []]
    for first in range(length, length + 90, 9):
        logits = passes.run([(row, ids[first : first + 9]) for row, ids in zip(rows, sequences, strict=True)])
        for row, ids, part, piece in zip(rows, sequences, parts, logits, strict=True):
            part.append(piece)
            passes.cache.commit(row, first + 9, ids)
    for ids, part in zip(sequences, parts, strict=True):
        assert same(small_model, torch.cat(part), ids, length)
    passes.cache.check()


def test_a_retracted_sequence_resumes_exactly(small_model: Transformer) -> None:
    rng = random.Random(6)
    passes = PagedPasses(small_model, num_rows=2, max_len=800)
    ids = random_ids(rng, 500)
    for cut in (90, 130, 300, 490):
        row = passes.open(ids)
        start = row.start_len
        assert same(small_model, passes.read(row, ids[:cut], chunk=61), ids, start)
        passes.cache.close(row, finished=False)
    row = passes.open(ids)
    assert row.start_len == 3 * PAGE, "the last window stays while there is room"
    assert same(small_model, passes.read(row, ids), ids, 3 * PAGE)


def poison(pools: CachePools) -> None:
    """Writes NaN everywhere but under the null ids."""
    a_page = pools.geometry.page_size
    for layer, kind in enumerate(pools.geometry.layers):
        pools.kv[layer][a_page : pools.entry_base] = float("nan")
        for tensor, first in ((pools.kv[layer], pools.entry_base), (pools.index[layer], 0)):
            if kind.ratio and tensor is not None:
                tensor[first + a_page // kind.ratio :] = float("nan")
        for tensor in (pools.rings[layer], pools.snapshots[layer]):
            if tensor is not None:
                tensor.fill_(float("nan"))


@pytest.mark.parametrize("page_size", [128, 256])
def test_nothing_that_earlier_owners_left_reaches_a_row(small_model: Transformer, page_size: int) -> None:
    """Every number of the cache is NaN, except for the null ids, as after requests that all failed."""
    rng = random.Random(7)
    passes = PagedPasses(small_model, num_rows=2, max_len=600, page_size=page_size, max_draft_len=2)
    poison(passes.pools)
    ids = random_ids(rng, 420)
    row = passes.open(ids)
    assert same(small_model, passes.read(row, ids, chunk=50), ids, 0)
    passes.cache.close(row, finished=True)
    other = ids[:page_size] + random_ids(rng, 60)
    row = passes.open(other)
    start = row.start_len
    assert same(small_model, passes.read(row, other, chunk=7), other, start)


def test_pages_that_are_not_cleared_would_be_found(
    cpu_only: None, small_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: one masked NaN is enough. A GPU's kernels do not read what is masked."""
    monkeypatch.setattr(CachePools, "apply", lambda pools, work: None)
    passes = PagedPasses(small_model, num_rows=1, max_len=600)
    poison(passes.pools)
    ids = random_ids(random.Random(7), 40)
    assert not same(small_model, passes.read(passes.open(ids), ids), ids, 0)


@pytest.mark.parametrize("page_size", [128, 256, 384])
def test_the_page_size_changes_no_bit(small_model: Transformer, page_size: int) -> None:
    rng = random.Random(8)
    passes = PagedPasses(small_model, num_rows=1, max_len=500, page_size=page_size)
    ids = random_ids(rng, 450)
    assert same(small_model, passes.read(passes.open(ids), ids, chunk=77), ids, 0)


@pytest.mark.parametrize("dtype", cases(DTYPES, [torch.bfloat16]))
def test_the_official_formats_change_no_bit_of_what_quantized_numerics_compute(
    small_model: Transformer, dtype: torch.dtype
) -> None:
    """Prefill in chunks, decode, drafts that are rejected, a hit, and a replay."""
    model, rng = variant(small_model, "quantized", dtype), random.Random(9)
    passes = PagedPasses(model, num_rows=1, max_len=800, max_draft_len=2, policy="none", storage="official")
    assert passes.pools.kv[1].dtype is torch.uint8
    first = random_ids(rng, 660)
    row = passes.open(first)
    assert same(model, passes.read(row, first[:640], chunk=201), first, 0)
    passes.run([(row, [first[640], *random_ids(rng, 2)])])
    passes.cache.commit(row, 641, first)
    assert same(model, passes.read(row, first, chunk=1), first, 641)
    passes.cache.close(row, finished=True)
    ids = first[:640] + random_ids(rng, 30)
    row = passes.open(ids)
    assert row.stored_len == 640 and row.start_len == 640 - (5 * 127 + 1)
    start = row.start_len
    assert same(model, passes.read(row, ids, chunk=300)[639 - start :], ids, 639)


def test_the_official_formats_are_refused_where_they_would_lose_bits(small_model: Transformer) -> None:
    with pytest.raises(ConfigError, match="cache_storage is 'official' and numerics is 'plain'"):
        PagedPasses(small_model, num_rows=1, max_len=100, storage="official")
