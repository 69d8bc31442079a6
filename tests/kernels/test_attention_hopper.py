"""The CUDA kernels of attention over packed V4 keys: near float64, and a row's bits its own in every schedule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.kernels.kv_storage import PackedKv, pack_kv, unpack_kv
from benthic.kernels.rope import RopeTable, apply_rope
from benthic.kernels.sparse_attention import TilePlan, sparse_attention
from benthic.kernels.sparse_attention.cases import Pass, inputs, make_pass, random_picks
from benthic.kernels.sparse_attention.cuda import WIDENED, attend_tiles_cuda
from tests.kernels.test_attention_cuda import exact, on_cuda
from tests.kernels.test_cuda import no_waiting

pytestmark = pytest.mark.gpu

DIM, ROPE = 512, 64
SPANS = ((0, 0, 70), (1, 250, 1), (0, 190, 1), (1, 0, 3), (1, 400, 200), (0, 599, 1))
WHOLE = (0, 0, 0)
SPREAD = [(1, 64, 4), (1, 64, 1), (2, 128, 3), (3, 128, 1), (5, 128, 1)]
# Of the result's norm: operands of 11 bits, a result rounded to 8.
TOLERANCE = 2.5e-3


def packed(keys: Tensor) -> PackedKv:
    return PackedKv(pack_kv(keys, ROPE), DIM, ROPE, torch.bfloat16)


def case(
    ratio: int, heads: int, spans: Any = SPANS, *, longest: int = 600, page: int = 64
) -> tuple[Pass, dict[str, Any]]:
    where = make_pass(ratio, spans, longest=longest, page=page)
    given = inputs(where, torch.bfloat16, heads=heads, dim=DIM)
    return where, given | {"query": given["query"] * 1.5}


def there(given: dict[str, Any]) -> dict[str, Any]:
    """The inputs on CUDA, with packed keys."""
    moved = on_cuda(given | {"keys": torch.zeros(0)})
    keys = packed(given["keys"])
    return moved | {"keys": replace(keys, data=keys.data.cuda())}


def widened(given: dict[str, Any]) -> dict[str, Any]:
    """The same with keys as the rows that they hold."""
    keys = given["keys"]
    return given | {"keys": unpack_kv(keys.data, DIM, ROPE, keys.dtype)}


def by_schedule(given: dict[str, Any], schedule: tuple[int, int, int], workspace_bytes: int = 1 << 28) -> Tensor:
    """Tiles of single rows take whole rows where widened keys are asked for."""
    plan: TilePlan = given["plan"]
    picks = given.get("picks") or [None] * len(plan.groups)
    parts = []
    for tiles, kept in zip(plan.groups, picks, strict=True):
        by = WHOLE if schedule == WIDENED and tiles.rows_per_tile == 1 else schedule
        call = (given["query"], given["keys"], given["sink"], tiles, given["scale"], kept)
        parts.append(attend_tiles_cuda(*call, None, None, workspace_bytes, by))
    return torch.cat(parts).index_select(0, plan.order)


@pytest.mark.parametrize("heads", [64, 128])
@pytest.mark.parametrize(("ratio", "picked"), [(0, 0), (4, 0), (4, 90), (128, 0)])
def test_it_is_near_float64_never_waits_and_both_schedules_agree(ratio: int, picked: int, heads: int) -> None:
    where, given = case(ratio, heads)
    given = there(given | ({"picks": random_picks(where, picked)} if picked else {}))
    sparse_attention(**given, impl="cuda")  # compiles
    with no_waiting():
        got = sparse_attention(**given)
    expected = exact(widened(given))
    assert (got.double() - expected).norm() / expected.norm() <= TOLERANCE
    for schedule in (WHOLE, WIDENED, *SPREAD):
        assert torch.equal(by_schedule(given, schedule), got), schedule


def test_large_scores_and_windows_without_a_key_in_them_agree_too() -> None:
    where, given = case(4, 64)
    given = there(given | {"query": given["query"] * 20, "picks": random_picks(where, 90)})
    got = by_schedule(given, WHOLE)
    expected = exact(widened(given))
    assert (got.double() - expected).norm() / expected.norm() <= 2 * TOLERANCE
    assert all(torch.equal(by_schedule(given, schedule), got) for schedule in (WIDENED, *SPREAD))


def test_lists_of_more_than_one_chunk_are_folded_in_one_order() -> None:
    where, given = case(4, 64, [(0, 0, 5), (0, 6500, 300), (1, 7999, 1)], longest=8000)
    given = there(given)
    got = sparse_attention(**given, impl="cuda")
    expected = exact(widened(given))
    assert (got.double() - expected).norm() / expected.norm() <= TOLERANCE
    for schedule in (WHOLE, WIDENED, *SPREAD):
        for workspace in (1, 1 << 28):
            assert torch.equal(by_schedule(given, schedule, workspace), got), (schedule, workspace)


@pytest.mark.parametrize("picked", [0, 90])
def test_a_row_alone_and_in_any_batch_has_the_bits_it_has_in_a_long_run(picked: int) -> None:
    whole, given = case(4, 64, [(0, 0, 300), (1, 5, 130)], longest=300)

    def attend(where: Pass, rows: Tensor | slice) -> Tensor:
        mine = given | {"query": given["query"][rows], "plan": where.plan}
        return sparse_attention(**there(mine | ({"picks": random_picks(where, picked)} if picked else {})), impl="cuda")

    expected = attend(whole, slice(None))
    for start, length in [(299, 1), (0, 1), (63, 2), (128, 64), (130, 100), (17, 1), (3, 16)]:
        part = attend(whole.of_runs([(0, start, length)]), slice(start, start + length))
        assert torch.equal(part, expected[start : start + length]), (start, length)
    for batch in (1, 7, 64, 133):
        rows = (torch.randperm(150)[:batch] * 2).clamp(max=298)
        one_by_one = whole.of_runs([(0, int(row), 1) for row in rows])
        assert torch.equal(attend(one_by_one, rows), expected[rows.cuda()]), batch


def test_neither_pages_nor_unseen_keys_are_in_the_bits() -> None:
    where, given = case(4, 64, SPANS[:4], longest=300)
    expected = sparse_attention(**there(given), impl="cuda")
    for page in (16, 32, 128):
        other = make_pass(4, SPANS[:4], longest=300, page=page)
        moved = torch.full((other.num_slots, DIM), torch.nan, dtype=torch.bfloat16)
        for sequence in (0, 1):
            for t in range(300):
                moved[other.window_slot(sequence, t)] = given["keys"][where.window_slot(sequence, t)]
            for entry in range(75):
                moved[other.entry_slot(sequence, entry)] = given["keys"][where.entry_slot(sequence, entry)]
        elsewhere = there(given | {"keys": moved, "plan": other.plan})
        assert torch.equal(sparse_attention(**elsewhere, impl="cuda"), expected), page
        assert torch.equal(by_schedule(elsewhere, WIDENED), expected), page


@pytest.mark.parametrize("ratio", [0, 4, 128])
def test_runs_of_several_sequences_share_a_workspace_of_widened_keys(
    ratio: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, given = case(ratio, 128, [(0, 0, 70), (1, 37, 500), (0, 300, 90), (1, 600, 64)], longest=700)
    plan = where.of_runs([(run.sequence, run.start, run.length) for run in where.runs], tiles_per_group=32).plan
    tiles = plan.groups[-1]
    assert tiles.num_runs == 4
    given = there(
        given | {"plan": plan} | ({"picks": random_picks(replace(where, plan=plan), 90)} if ratio == 4 else {})
    )
    expected = by_schedule(given, WHOLE)
    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    assert torch.equal(by_schedule(given, WIDENED), expected), "what is not written is not read, whatever it holds"


def poisoned(empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As `torch.empty`, and full of NaN."""

    def full(*size: object, **options: object) -> Tensor:
        made = empty(*size, **options)
        made.view(torch.uint8).fill_(255)
        return made

    return full


@pytest.mark.parametrize("spans", [SPANS, [(0, 7999, 1)], [(0, 100, 16), (1, 7000, 64)]])
def test_the_result_is_turned_back_to_the_bits_of_a_rotation_after_it(spans: Any) -> None:
    where, given = case(4, 64, spans, longest=8000)
    given = there(given)
    angles = torch.randn(where.num_rows, ROPE // 2, device="cuda")
    rope = RopeTable(angles.cos(), angles.sin())
    plain = sparse_attention(**given, impl="cuda")
    assert torch.equal(sparse_attention(**given, inverse_rope=rope, impl="cuda"), apply_rope(plain, rope, inverse=True))


def test_dummy_rows_are_finite() -> None:
    where, given = case(4, 64, [(0, 5, 3)])
    order = torch.cat([where.plan.order, torch.zeros(5, dtype=torch.int64)])
    given |= {"plan": TilePlan(where.plan.groups, order), "query": given["query"].repeat(3, 1, 1)[:8]}
    assert torch.isfinite(sparse_attention(**there(given), impl="cuda")).all()


@pytest.mark.parametrize("batch", [3, 64])
def test_a_captured_pass_follows_positions_and_picks(batch: int) -> None:
    spans = [(row % 2, 100 + row, 1) for row in range(batch)]
    where, given = case(4, 64, spans, longest=300)
    given = there(given | {"picks": random_picks(where, 40)})
    sparse_attention(**given, impl="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sparse_attention(**given, impl="cuda")
    tiles = given["plan"].groups[0]
    tiles.positions.sub_(60)
    given["picks"][0][..., :3] = torch.tensor([0, 2, 9])
    given["query"].mul_(0.5)
    expected = sparse_attention(**given, impl="cuda")
    graph.replay()
    assert torch.equal(captured, expected)
