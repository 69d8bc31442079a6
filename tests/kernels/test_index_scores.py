"""index_scores and select_topk: the loop of the specification, exact sets, gradients, rows on their own."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.index_scores import cuda, index_scores
from benthic.kernels.index_scores.cases import device_keys, device_tiles
from benthic.kernels.kv_storage import KeyForm, PackedIndex, pack_index, unpack_index
from benthic.kernels.select_topk import select_topk
from benthic.kernels.sparse_attention.cases import index_inputs as inputs
from benthic.kernels.sparse_attention.cases import make_pass
from tests.kernels import laws

SPANS = ((0, 0, 70), (1, 250, 1), (0, 190, 1))


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_scores_are_the_loop_over_entries_and_minus_infinity_beyond(impl: str) -> None:
    where = make_pass(4, SPANS)
    given = inputs(where)
    row_of_tile = 0
    for tiles in where.plan.groups:
        scores = index_scores(**given, tiles=tiles, impl=impl).flatten(0, 1)
        for place, row in enumerate(tiles.queries.tolist()):
            run = next(run for run in where.runs if run.start_row <= row < run.start_row + run.length)
            seen = (run.start + row - run.start_row + 1) // 4
            keys = given["keys"][[where.index_slot(run.sequence, w) for w in range(seen)]]
            expected = given["gamma"][row] @ (given["query"][row] @ keys.T).relu()
            torch.testing.assert_close(scores[place, :seen], expected, rtol=1e-5, atol=2e-5)
            assert (scores[place, seen:] == -torch.inf).all()
            row_of_tile += 1
    assert row_of_tile >= where.num_rows


def test_gradients_are_the_numeric_ones() -> None:
    where = make_pass(4, [(0, 30, 1)], longest=64)
    given, tiles = inputs(where, torch.float64, heads=2, dim=3), where.plan.groups[0]
    slots = torch.tensor([where.index_slot(0, w) for w in range(7)])
    keys = given.pop("keys")

    def op(few_keys: Tensor, **rest: Tensor) -> Tensor:
        return index_scores(keys=keys.index_copy(0, slots, few_keys), **rest, tiles=tiles)[..., :7]

    laws.assert_gradients(op, {"few_keys": keys[slots]} | given)


@pytest.mark.parametrize("heads", [1, 5, 16])
def test_a_row_alone_has_the_bits_it_has_in_a_run(heads: int) -> None:
    where = make_pass(4, [(0, 64, 64)])
    given = inputs(where, heads=heads)
    whole = index_scores(**given, tiles=where.plan.groups[0])[0]
    for row in (0, 31, 63):
        alone = make_pass(4, [(0, 64 + row, 1)])
        tiles = alone.plan.groups[0]
        one = {"query": given["query"][row : row + 1], "gamma": given["gamma"][row : row + 1]}
        keys = given["keys"].clone()
        for entry in range(64):  # the other pass lies in other blocks
            keys[alone.index_slot(0, entry)] = given["keys"][where.index_slot(0, entry)]
        assert torch.equal(index_scores(**one, keys=keys, tiles=tiles)[0, 0], whole[row])


@pytest.mark.parametrize("kind", ["smooth", "tied", "all equal", "all negative", "partly invisible"])
@pytest.mark.parametrize("k", [1, 4, 40, 100])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_the_selected_set_is_that_of_an_exact_sort(kind: str, k: int, impl: str) -> None:
    scores = torch.randn(30, 57) * torch.tensor([1e-30, 1.0, 1e30]).repeat(10)[:, None]
    if kind == "tied":
        scores = scores.round()
    if kind == "all equal":
        scores = torch.zeros(30, 57).copysign(torch.randn(30, 57))
    if kind == "all negative":
        scores = -scores.abs() - 1
    if kind == "partly invisible":
        scores[:, 20:] = -torch.inf
    picks = select_topk(scores, k, impl=impl)
    assert picks.shape == (30, min(k, 57))
    for row, picked in zip(scores.tolist(), picks.tolist(), strict=True):
        best = sorted(range(57), key=lambda i: (-row[i], i))[:k]
        visible = sorted(i for i in best if row[i] > -torch.inf)
        assert picked == visible + [-1] * (len(picked) - len(visible))


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_trailing_invisible_entries_leave_the_set(impl: str) -> None:
    scores = torch.randn(9, 20).round()
    longer = torch.cat([scores, torch.full((9, 44), -torch.inf)], dim=1)
    assert torch.equal(select_topk(longer, 6, impl=impl), select_topk(scores, 6, impl=impl))


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(KernelInputError, match=r"k \(0\)"):
        select_topk(torch.zeros(2, 3), 0)
    where = make_pass(4, SPANS)
    with pytest.raises(KernelInputError, match="gamma"):
        index_scores(**(inputs(where) | {"gamma": torch.zeros(1, 5)}), tiles=where.plan.groups[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("form", ["v4", "v3.2"])
def test_packed_keys_give_the_bits_of_the_keys_that_they_hold(dtype: torch.dtype, impl: str, form: KeyForm) -> None:
    where = make_pass(4, SPANS, page=32)
    given = inputs(where, dtype, dim=32)
    packed = PackedIndex(pack_index(given["keys"], form), 32, dtype, form)
    given["keys"] = unpack_index(packed.data, 32, dtype, form)
    for tiles in where.plan.groups:
        expected = index_scores(**given, tiles=tiles, impl=impl)
        assert torch.equal(index_scores(**(given | {"keys": packed}), tiles=tiles, impl=impl), expected)


def test_hopper_takes_packed_keys_of_a_released_indexer_unnamed_and_refuses_others_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "uses_cuda_kernel", lambda impl, x: impl in ("auto", "cuda"))
    query, keys = torch.zeros(3, 64, 128, dtype=torch.bfloat16), device_keys(256, "v4", "cpu")
    tiles = device_tiles(3, 1, 64, torch.arange(3).view(3, 1), 64)
    assert cuda.takes_cuda("auto", query, keys, tiles) and cuda.takes_cuda("cuda", query, keys, tiles)
    assert not cuda.takes_cuda("triton", query, keys, tiles)
    for other in (query.float(), query[:, :32]):
        assert not cuda.takes_cuda("auto", other, keys, tiles)
        with pytest.raises(KernelInputError, match="impl='cuda'"):
            cuda.takes_cuda("cuda", other, keys, tiles)
