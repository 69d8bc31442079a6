"""The CUDA C++ kernels of the indexer: scores near float64 whose bits are their pair's own, and exact picks."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from benthic.kernels.index_scores import index_scores, pick_entries
from benthic.kernels.index_scores.cases import DIM, device_keys, device_queries, device_tiles
from benthic.kernels.index_scores.cuda import write_visible_scores
from benthic.kernels.kv_storage import KeyForm, PackedIndex, pack_index, unpack_index
from benthic.kernels.select_topk import select_topk
from benthic.kernels.select_topk.cuda import Visible, select_topk_cuda
from benthic.kernels.select_topk.reference import select_topk_ref
from benthic.kernels.sparse_attention import KeyTiles
from benthic.kernels.sparse_attention.cases import Pass, make_pass
from tests.kernels.test_attention_cuda import tiles_on_cuda
from tests.kernels.test_cuda import no_waiting

pytestmark = pytest.mark.gpu

SPANS = [(0, 200, 400), (1, 900, 1), (1, 3, 2), (0, 0, 30)]
FORMS: tuple[KeyForm, ...] = ("v4", "v3.2")
# Of the scores' norm. Dots of FP4 values are nearly exact; those of FP8 lose what Hopper's tensor cores drop.
TOLERANCE = {"v4": 4e-5, "v3.2": 6e-4}


def packed_keys(where: Pass, form: KeyForm) -> PackedIndex:
    """Random keys whose groups of 32 differ in scale."""
    scale = torch.exp2(torch.randint(-3, 4, (where.num_slots, 4, 1), device="cuda")).expand(-1, -1, 32)
    rows = torch.randn(where.num_slots, DIM, device="cuda") * scale.reshape(-1, DIM)
    return PackedIndex(pack_index(rows.bfloat16(), form), DIM, torch.bfloat16, form)


def real(tiles: KeyTiles) -> Tensor:
    return torch.arange(tiles.rows_per_tile, device="cuda") < tiles.used[:, None]


def exact(query: Tensor, gamma: Tensor, keys: PackedIndex, tiles: KeyTiles) -> Tensor:
    rows = unpack_index(keys.data, DIM, torch.float32, keys.form).double()
    return index_scores(query.double(), gamma.double(), rows, tiles, impl="reference")


def scored(where: Pass, query: Tensor, gamma: Tensor, keys: PackedIndex) -> Iterator[tuple[KeyTiles, Tensor]]:
    for tiles in map(tiles_on_cuda, where.plan.groups):
        yield tiles, index_scores(query, gamma, keys, tiles, impl="cuda")


def error(got: Tensor, expected: Tensor) -> float:
    """Relative, where something is visible; what is not must be hidden in both."""
    assert torch.equal(got == -torch.inf, expected == -torch.inf)
    seen = expected > -torch.inf
    return float((got[seen].double() - expected[seen]).norm() / expected[seen].norm())


@pytest.mark.parametrize("page", [16, 32, 64, 128, 512])
@pytest.mark.parametrize("form", FORMS)
def test_scores_are_near_float64_whatever_the_pages_and_pieces(form: KeyForm, page: int) -> None:
    where = make_pass(4, SPANS, longest=1100, page=page)
    query, gamma = device_queries(where.num_rows, form)
    keys = packed_keys(where, form)
    for tiles, scores in scored(where, query, gamma, keys):
        mine = real(tiles)
        assert error(scores[mine], exact(query, gamma, keys, tiles)[mine]) <= TOLERANCE[form]
        blocks = [(b, b + 1) for b in range(tiles.num_entry_blocks)]
        pieces = [index_scores(query, gamma, keys, tiles, piece, impl="cuda") for piece in blocks]
        assert torch.equal(torch.cat(pieces, -1)[mine], scores[mine])


@pytest.mark.parametrize("form", FORMS)
def test_a_score_has_the_bits_of_its_pair_in_every_batch_and_tile(form: KeyForm) -> None:
    whole = make_pass(4, [(0, 0, 300), (1, 5, 130)])
    query, gamma = device_queries(whole.num_rows, form)
    keys, found = packed_keys(whole, form), {}
    if form == "v4":
        keys.data[::7, DIM // 2], keys.data[::7, DIM // 2 + 2] = 100, 127
    for tiles, scores in scored(whole, query, gamma, keys):
        found |= dict(zip(tiles.queries.view_as(real(tiles))[real(tiles)].tolist(), scores[real(tiles)], strict=True))
    for batch in (1, 7, 64, 133):
        rows = torch.randperm(133)[:batch] * 2 + 30
        alone = whole.of_runs([(0, int(row), 1) for row in rows])
        for _, scores in scored(alone, query[rows], gamma[rows], keys):
            for row, one in zip(rows.tolist(), scores[:, 0], strict=True):
                width = min(one.shape[0], found[row].shape[0])
                assert torch.equal(one[:width], found[row][:width]), (batch, row)


@pytest.mark.parametrize("shape", [(128, 8192), (32, 32768)], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_long_contexts_queued_behind_one_another_have_the_scores_of_each_alone(
    form: KeyForm, shape: tuple[int, int]
) -> None:
    """124 blocks a program, a hundred calls in flight over three caches: what a bench does and single calls do not."""
    (rows, entries), caches = shape, 3
    query, gamma = device_queries(rows, form)
    keys = device_keys(caches * rows * entries, form)
    tables = torch.randperm(caches * rows * entries // 64, device="cuda").view(caches, rows, -1)
    tiles = [device_tiles(rows, 1, entries, table, 64) for table in tables]
    alone = []
    for one in tiles:
        alone.append(index_scores(query, gamma, keys, one, impl="cuda"))
        torch.cuda.synchronize()
    held = [torch.empty_like(one) for one in alone]
    for n in range(34 * caches):
        held[n % caches].fill_(-torch.inf)
        write_visible_scores(query, gamma, keys, tiles[n % caches], (0, tiles[0].num_entry_blocks), held[n % caches])
    torch.cuda.synchronize()
    assert all(torch.equal(got, one) for got, one in zip(held, alone, strict=True))
    for row in (0, 17, rows - 1):
        one = device_tiles(1, 1, entries, tables[0, row : row + 1], 64)
        mine = index_scores(query[row : row + 1], gamma[row : row + 1], keys, one, impl="cuda")[0]
        assert torch.equal(mine, alone[0][row])
    near = index_scores(query, gamma, keys, tiles[0], (0, 4), impl="triton")
    assert error(alone[0][..., :256], near.double()) <= TOLERANCE[form]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 5, 128])
def test_unnamed_scores_and_picks_of_packed_keys_are_the_cuda_kernels(form: KeyForm, rows: int) -> None:
    query, gamma = device_queries(rows, form)
    keys = device_keys(rows * 2048, form)
    tiles = device_tiles(rows, 1, 2048, torch.randperm(rows * 32, device="cuda").view(rows, -1), 64)
    named = index_scores(query, gamma, keys, tiles, impl="cuda")
    assert torch.equal(index_scores(query, gamma, keys, tiles), named)
    assert not torch.equal(index_scores(query, gamma, keys, tiles, impl="triton"), named), "both are one kernel"
    assert torch.equal(pick_entries(query, gamma, keys, tiles, 512), select_topk_ref(named, 512))


def test_what_fp8_does_not_hold_is_computed_in_float32() -> None:
    """Scales of a key far apart, and queries that were never rounded."""
    where = make_pass(4, SPANS, longest=1100)
    query, gamma = device_queries(where.num_rows, "v4")
    keys = packed_keys(where, "v4")
    keys.data[:, DIM // 2], keys.data[:, DIM // 2 + 2] = 100, 127
    for tiles, scores in scored(where, query, gamma, keys):
        assert error(scores[real(tiles)], exact(query, gamma, keys, tiles)[real(tiles)]) <= 1e-6
    query = torch.randn_like(query)
    for form in FORMS:
        keys = packed_keys(where, form)
        for tiles, scores in scored(where, query, gamma, keys):
            assert error(scores[real(tiles)], exact(query, gamma, keys, tiles)[real(tiles)]) <= 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_picks_are_those_of_the_scores_in_a_captured_graph_and_in_pieces(form: KeyForm) -> None:
    where = make_pass(4, SPANS, longest=1100)
    query, gamma = device_queries(where.num_rows, form)
    keys = packed_keys(where, form)
    for tiles, scores in scored(where, query, gamma, keys):
        expected, mine = select_topk_ref(scores, 20)[real(tiles)], real(tiles)
        with no_waiting():
            picks = pick_entries(query, gamma, keys, tiles, 20, impl="cuda")
        assert torch.equal(picks[mine], expected)
        pieces = pick_entries(query, gamma, keys, tiles, 20, workspace_bytes=1, impl="cuda")
        assert torch.equal(pieces[mine], expected)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = pick_entries(query, gamma, keys, tiles, 20, impl="cuda")
        graph.replay()
        assert torch.equal(held[mine], expected)
        tiles.positions.clamp_(max=99)  # the graph follows what lies on the device
        graph.replay()
        again = select_topk_ref(index_scores(query, gamma, keys, tiles, impl="cuda"), 20)
        assert torch.equal(held[mine], again[mine])


def score_rows(kind: str, rows: int, width: int) -> Tensor:
    scores = torch.randn(rows, width, device="cuda")
    if kind == "tied":
        scores = (3 * scores).round()
    if kind == "equal":
        scores = torch.zeros_like(scores).copysign(scores)
    if kind == "hidden":
        scores[:, torch.rand(width, device="cuda") < 0.97] = -torch.inf
        scores[0] = -torch.inf
    if kind == "denormal":
        scores *= 1e-42
    if kind == "spread":
        scores *= torch.exp(20 * scores)
    return scores


@pytest.mark.parametrize("kind", ["smooth", "tied", "equal", "hidden", "denormal", "spread"])
@pytest.mark.parametrize("shape", [(1, 8192), (128, 8192), (1, 262144), (32, 32768), (3, 1001), (300, 57)], ids=str)
def test_picks_are_the_references_however_a_row_is_cut(shape: tuple[int, int], kind: str) -> None:
    scores = score_rows(kind, *shape)
    for k in (1, 512, 1024):
        expected = select_topk_ref(scores, k)
        assert torch.equal(select_topk(scores, k), expected), k
        for cluster in (1, 2, 4, 8):
            assert torch.equal(select_topk_cuda(scores, k, None, cluster), expected), (k, cluster)


def test_only_visible_scores_are_read() -> None:
    scores = torch.randn(1, 64, 1024, device="cuda")
    positions = 37 * torch.arange(64, device="cuda").view(1, 64)
    seen = (positions + 1) // 4 * (torch.arange(64, device="cuda") < 60)
    hidden = torch.arange(1024, device="cuda") >= seen[..., None]
    expected = select_topk_ref(scores.masked_fill(hidden, -torch.inf), 100)
    visible = Visible(positions, torch.tensor([60], device="cuda"), 64, 4)
    assert torch.equal(select_topk_cuda(scores.masked_fill(hidden, torch.nan), 100, visible), expected)
