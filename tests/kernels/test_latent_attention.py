"""Latent attention in its absorbed form: one entry a token, no window, no sink, values narrower than keys."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.index_scores import all_visible, index_scores, pick_entries
from benthic.kernels.kv_storage import PackedKv, pack_kv, unpack_kv
from benthic.kernels.select_topk import select_topk
from benthic.kernels.sparse_attention import KeyTiles, op, sparse_attention
from benthic.kernels.sparse_attention.cases import (
    Pass,
    index_inputs,
    latent_inputs,
    make_latent_pass,
    make_pass,
    random_picks,
)
from tests.kernels import laws

IMPLS = ["auto", "reference"]
SPANS = ((0, 0, 70), (1, 250, 1), (0, 190, 1), (1, 0, 3))
LONG = ((0, 3000, 150), (1, 2999, 1), (0, 40, 70), (1, 2500, 9))
# Scores are sums of 24 products and weights exponentials; 300 keys are averaged.
TOLERANCE = 3e-6


def rows_of(where: Pass) -> list[tuple[int, int, int]]:
    """(row, sequence, position) of every row."""
    return [(run.start_row + i, run.sequence, run.start + i) for run in where.runs for i in range(run.length)]


def loop(where: Pass, query: Tensor, keys: Tensor, scale: float, value_dim: int, picks: Tensor | None = None) -> Tensor:
    """Row by row, in float64; `picks` [R, k] of the rows."""
    out = torch.zeros(*query.shape[:2], value_dim, dtype=torch.float64)
    for row, sequence, position in rows_of(where):
        seen = range(position + 1) if picks is None else [w for w in picks[row].tolist() if 0 <= w <= position]
        k = keys[[where.entry_slot(sequence, w) for w in seen]].double()
        if len(k):
            weights = (query[row].double() @ k.T * scale).softmax(-1)
            out[row] = weights @ k[:, :value_dim]
    return out


def picks_of_rows(picks: list[Tensor | None], where: Pass) -> Tensor:
    return torch.cat([one.flatten(0, 1) for one in picks if one is not None]).index_select(0, where.plan.order)


@pytest.mark.parametrize("impl", IMPLS)
def test_it_is_a_softmax_over_all_tokens_so_far_of_keys_whose_first_numbers_are_values(impl: str) -> None:
    where = make_latent_pass(SPANS)
    given = latent_inputs(where)
    expected = loop(where, given["query"], given["keys"], given["scale"], 16)
    got = sparse_attention(**given, impl=impl)
    assert got.shape == (where.num_rows, 4, 16)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("impl", IMPLS)
def test_only_picked_tokens_count_and_a_row_that_picks_none_is_zeros(impl: str) -> None:
    where = make_latent_pass(SPANS)
    given, picks = latent_inputs(where), random_picks(where, 40)
    expected = loop(where, given["query"], given["keys"], given["scale"], 16, picks_of_rows(picks, where))
    got = sparse_attention(**given, picks=picks, impl=impl)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE)
    is_empty = expected.eq(0).all(-1).all(-1)
    assert is_empty.any() and got[is_empty].eq(0).all() and got[~is_empty].ne(0).any(-1).all()
    everything = [all_visible(tiles, 256) for tiles in where.plan.groups]
    assert torch.equal(sparse_attention(**given, picks=everything, impl=impl), sparse_attention(**given, impl=impl))


@pytest.mark.parametrize("impl", IMPLS)
def test_rows_before_the_first_entry_are_zeros_without_a_sink_and_their_gradients_are_finite(impl: str) -> None:
    where = make_pass(4, [(0, 0, 70), (1, 2, 1)], window=0)
    given = latent_inputs(where)
    leaves = {name: given[name].requires_grad_() for name in ("query", "keys")}
    out = sparse_attention(**(given | leaves), impl=impl)
    blind = torch.tensor([position < 3 for _, _, position in rows_of(where)])
    assert out[blind].eq(0).all() and out[~blind].ne(0).any(-1).all()
    out.sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves.values())
    assert leaves["query"].grad is not None and leaves["query"].grad[blind].eq(0).all()


@pytest.mark.parametrize("impl", IMPLS)
def test_extreme_scores_stay_finite(impl: str) -> None:
    where = make_latent_pass(SPANS)
    given = latent_inputs(where)
    for factor in (1e4, -1e4):
        assert sparse_attention(**(given | {"query": given["query"] * factor}), impl=impl).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("heads", [1, 4, 7, 20])
@pytest.mark.parametrize("with_picks", [False, True], ids=["all", "picks"])
def test_a_row_alone_has_the_bits_it_has_in_a_long_run(
    dtype: torch.dtype, impl: str, heads: int, with_picks: bool
) -> None:
    whole = make_latent_pass([(0, 0, 300), (1, 5, 130)])
    given = latent_inputs(whole, dtype, heads=heads)
    expected = sparse_attention(**given, picks=random_picks(whole, 30) if with_picks else None, impl=impl)
    for start, length in [(299, 1), (0, 1), (63, 2), (128, 64), (130, 100), (17, 1), (100, 16)]:
        part = whole.of_runs([(0, start, length)])
        rows = given | {"query": given["query"][start : start + length], "plan": part.plan}
        picks = random_picks(part, 30) if with_picks else None
        got = sparse_attention(**rows, picks=picks, impl=impl)
        assert torch.equal(got, expected[start : start + length]), (start, length)


@pytest.mark.parametrize(("dim", "value_dim"), [(24, 16), (48, 32), (200, 136), (576, 512)])
def test_products_have_the_bits_of_chains(dim: int, value_dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    where = make_latent_pass([(0, 299, 1), (1, 5, 1), (0, 100, 9), (1, 1800, 90)], longest=2000)
    given, picks = latent_inputs(where, heads=6, dim=dim, value_dim=value_dim), random_picks(where, 30)
    if not op.chains_agree_here(dim, value_dim):
        pytest.skip("this library adds in another order, so decode takes its products anyway")
    chains = [sparse_attention(**given, picks=chosen) for chosen in (picks, None)]
    monkeypatch.setattr(op, "chains_agree_here", lambda *dims: False)
    products = [sparse_attention(**given, picks=chosen) for chosen in (picks, None)]
    assert all(torch.equal(a, b) for a, b in zip(products, chains, strict=True))


@pytest.mark.parametrize("with_picks", [False, True], ids=["all", "picks"])
def test_single_rows_of_many_heads_have_the_bits_of_tiles_whichever_way_they_go(with_picks: bool) -> None:
    whole = make_latent_pass([(0, 0, 1400), (1, 700, 30)], longest=1400)
    given = latent_inputs(whole, heads=32)
    expected = sparse_attention(**given, picks=random_picks(whole, 900) if with_picks else None)
    rows = torch.tensor([1399, 3, 700, 255, 256, 1400 + 29])
    apart = whole.of_runs([*((0, int(row), 1) for row in rows[:-1]), (1, 729, 1)])
    picks = random_picks(apart, 900) if with_picks else None

    def is_sparse(tiles: KeyTiles, kept: Tensor | None) -> bool:
        return op._is_sparse(tiles, kept, given["query"], 1 << 28)

    groups = list(zip(apart.plan.groups, picks or [None], strict=True))
    ways = {is_sparse(tiles, kept) for tiles, kept in op._in_parts(groups, is_sparse, given["query"])}
    assert ways == {False, True}
    got = sparse_attention(**(given | {"query": given["query"][rows], "plan": apart.plan}), picks=picks)
    assert torch.equal(got, expected[rows])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_picks", [False, True], ids=["all", "picks"])
def test_a_tile_has_the_same_bits_in_runs_of_fewer_rows(
    dtype: torch.dtype, with_picks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = make_latent_pass([(0, 0, 200), (1, 100, 30)])
    given = latent_inputs(where, dtype, heads=32)
    picks = random_picks(where, 200) if with_picks else None
    whole = sparse_attention(**given, picks=picks)
    for fewer in (2, 7, 24):
        monkeypatch.setattr(op, "cached_rows", lambda rows, *sizes, fewer=fewer: min(rows, fewer))
        assert torch.equal(sparse_attention(**given, picks=picks), whole), fewer


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("with_picks", [False, True], ids=["all", "picks"])
def test_the_size_of_pages_leaves_the_bits(impl: str, with_picks: bool) -> None:
    longest, spans = 300, [*SPANS, (0, 200, 90), (1, 100, 9)]
    entries, results = torch.randn(2, longest, 24), []
    given = latent_inputs(make_latent_pass(spans))
    for page in (64, 16, 32, 128, 256):
        where = make_latent_pass(spans, page=page)
        keys = torch.randn(where.num_slots, 24) * 100
        for sequence in range(2):
            for w in range(longest):
                keys[where.entry_slot(sequence, w)] = entries[sequence, w]
        picks = random_picks(where, 20) if with_picks else None
        results.append(sparse_attention(**(given | {"plan": where.plan, "keys": keys}), picks=picks, impl=impl))
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("with_picks", [False, True], ids=["all", "picks"])
def test_neither_workspace_nor_cuts_of_tiles_touch_the_bits(dtype: torch.dtype, impl: str, with_picks: bool) -> None:
    where = make_latent_pass(LONG, longest=3200)
    given = latent_inputs(where, dtype)
    picks = random_picks(where, 50) if with_picks else None
    at_once = sparse_attention(**given, picks=picks, impl=impl, workspace_bytes=1 << 40)
    for workspace_bytes in (1, 1 << 20, 4 << 20):
        pieces = sparse_attention(**given, picks=picks, impl=impl, workspace_bytes=workspace_bytes)
        assert torch.equal(pieces, at_once), workspace_bytes
    alone = where.of_runs([(run.sequence, run.start, run.length) for run in where.runs], tiles_per_group=1)
    picks = random_picks(alone, 50) if with_picks else None
    assert torch.equal(sparse_attention(**(given | {"plan": alone.plan}), picks=picks, impl=impl), at_once)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("kind", ["smooth", "tied"])
def test_the_indexer_picks_2048_tokens_as_an_exact_sort_does(impl: str, kind: str) -> None:
    where = make_latent_pass(LONG, longest=3200)
    given = index_inputs(where)
    if kind == "tied":
        given = {name: value.sign() if name != "gamma" else torch.ones_like(value) for name, value in given.items()}
    for tiles in where.plan.groups:
        scores = index_scores(**given, tiles=tiles, impl=impl)
        visible = tiles.positions + 1
        assert torch.equal(scores.isfinite().sum(-1), visible)
        ranked = scores.sort(dim=-1, descending=True, stable=True).indices[..., :2048]
        for workspace_bytes in (1, 1 << 20, 1 << 40):
            picks = pick_entries(**given, tiles=tiles, k=2048, impl=impl, workspace_bytes=workspace_bytes)
            assert torch.equal(picks, select_topk(scores, 2048, impl="reference"))
        for tile, place in torch.cartesian_prod(torch.arange(tiles.num_tiles), torch.arange(0, tiles.rows_per_tile, 9)):
            best = ranked[tile, place, : visible[tile, place]].sort().values
            assert torch.equal(picks[tile, place, : len(best)].long(), best)
            assert picks[tile, place, len(best) :].eq(-1).all()


def test_gradients_are_the_numeric_ones() -> None:
    where = make_latent_pass([(0, 20, 2), (1, 9, 1)], longest=64)
    given = latent_inputs(where, torch.float64, heads=2, dim=3, value_dim=2)
    read = sorted({where.entry_slot(seq, w) for seq, t in ((0, 21), (1, 9)) for w in range(t + 1)})
    keys, some = given.pop("keys"), torch.tensor(read)

    def attend(few_keys: Tensor, **rest: object) -> Tensor:
        return sparse_attention(keys=keys.index_copy(0, some, few_keys), **rest)  # type: ignore[arg-type]

    laws.assert_gradients(attend, {"few_keys": keys[some]} | given)


@pytest.mark.parametrize("spans", [SPANS, ((0, 0, 70),), ((1, 250, 1),)], ids=["both", "tiles", "rows"])
def test_gradients_through_the_kernels_are_the_references(spans: tuple[tuple[int, int, int], ...]) -> None:
    laws.assert_gradients_of_kernel(sparse_attention, latent_inputs(make_latent_pass(spans), torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", IMPLS)
def test_packed_keys_give_the_bits_of_the_rows_that_they_hold(dtype: torch.dtype, impl: str) -> None:
    where = make_latent_pass([*SPANS, (1, 90, 9)], page=32)
    given = latent_inputs(where, dtype, dim=200, value_dim=192)
    packed = PackedKv(pack_kv(given["keys"], 8, "v3.2"), 200, 8, dtype, "v3.2")
    rows = unpack_kv(packed.data, 200, 8, dtype, "v3.2")
    picks = random_picks(where, 40)
    from_rows = sparse_attention(**(given | {"keys": rows}), picks=picks, impl=impl)
    assert torch.equal(sparse_attention(**(given | {"keys": packed}), picks=picks, impl=impl), from_rows)


def test_values_wider_than_keys_are_refused() -> None:
    given = latent_inputs(make_latent_pass(SPANS))
    for value_dim in (0, 25):
        with pytest.raises(KernelInputError, match=rf"value_dim \({value_dim}\) must be at least 1 and at most"):
            sparse_attention(**(given | {"value_dim": value_dim}))
