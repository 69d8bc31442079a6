"""The Triton kernels of attention and of the indexer on CUDA: near float64, and a row's bits its own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.kernels.index_scores import index_scores, pick_entries
from benthic.kernels.kv_storage import KeyForm, PackedIndex, PackedKv, pack_index, pack_kv, unpack_index, unpack_kv
from benthic.kernels.sparse_attention import KeyTiles, TilePlan, sparse_attention
from benthic.kernels.sparse_attention.cases import (
    Pass,
    index_inputs,
    inputs,
    latent_inputs,
    make_latent_pass,
    make_pass,
    random_picks,
)
from tests.kernels.test_cuda import no_waiting

pytestmark = pytest.mark.gpu

SPANS = ((0, 0, 70), (1, 250, 1), (0, 190, 1), (1, 0, 3))
DTYPES = [torch.float32, torch.bfloat16]
# Of the result's norm: products and sums of 32-bit values; weights and results rounded to 8 bits.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
V4, LATENT = {"heads": 64, "dim": 512}, {"heads": 16, "dim": 576, "value_dim": 512}


def tiles_on_cuda(tiles: KeyTiles) -> KeyTiles:
    names = ("queries", "positions", "used", "sequence", "window_table", "entry_table")
    given = {name: getattr(tiles, name) for name in names}
    return replace(tiles, **{name: value.cuda() for name, value in given.items() if value is not None})


def on_cuda(given: dict[str, Any]) -> dict[str, Any]:
    def move(value: Any) -> Any:
        if isinstance(value, TilePlan):
            return TilePlan(tuple(tiles_on_cuda(tiles) for tiles in value.groups), value.order.cuda())
        if isinstance(value, list):
            return [move(one) for one in value]
        return value.cuda() if isinstance(value, Tensor) else value

    return {name: move(value) for name, value in given.items()}


def exact(given: dict[str, Any]) -> Tensor:
    wide = {name: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for name, v in given.items()}
    return sparse_attention(**wide)


def case(kind: str, dtype: torch.dtype) -> tuple[Pass, dict[str, Any]]:
    """Inputs on CUDA of one layer's attention."""
    spans = [*SPANS, (1, 400, 200), (0, 599, 1)]
    if kind.startswith("latent"):
        where = make_latent_pass(spans, longest=600)
        given: dict[str, Any] = latent_inputs(where, dtype, **LATENT)
    else:
        ratio = {"window": 0, "hca": 128}.get(kind, 4)
        where = make_pass(ratio, spans, longest=600)
        given = inputs(where, dtype, **({"heads": 3, "dim": 24} if kind == "small" else V4))
    if kind in ("csa", "latent picks"):
        given["picks"] = random_picks(where, 90)
    # A released model's queries and keys have scores of a few units.
    given["query"] = given["query"] * 1.5
    return where, on_cuda(given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["window", "csa", "hca", "small", "latent", "latent picks"])
def test_attention_is_near_float64_and_never_waits(kind: str, dtype: torch.dtype) -> None:
    _, given = case(kind, dtype)
    sparse_attention(**given)  # compiles
    with no_waiting():
        got = sparse_attention(**given)
    expected = exact(given)
    error = (got.double() - expected).norm() / expected.norm()
    print(f"{kind} {dtype}: {error:.1e}")
    assert error <= TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["v4", "latent", "small"])
@pytest.mark.parametrize("picked", [False, True])
def test_a_row_alone_has_the_bits_it_has_in_a_long_run(kind: str, dtype: torch.dtype, picked: bool) -> None:
    make = make_latent_pass if kind == "latent" else lambda spans: make_pass(4, spans)
    whole = make([(0, 0, 300), (1, 5, 130)])
    fitting = {"v4": V4, "latent": LATENT, "small": {"heads": 5, "dim": 40}}[kind]
    given = (latent_inputs if kind == "latent" else inputs)(whole, dtype, **fitting)

    def attend(where: Pass, rows: slice) -> Tensor:
        mine = given | {"query": given["query"][rows], "plan": where.plan}
        return sparse_attention(**on_cuda(mine | {"picks": random_picks(where, 90) if picked else None}))

    expected = attend(whole, slice(None))
    for start, length in [(299, 1), (0, 1), (63, 2), (128, 64), (130, 100), (17, 1), (3, 16)]:
        part = attend(whole.of_runs([(0, start, length)]), slice(start, start + length))
        assert torch.equal(part, expected[start : start + length]), (start, length)
    for batch in (1, 7, 32, 64, 133):
        # Decode of many sequences: rows one by one.
        rows = torch.arange(batch) * 2 + 30
        one_by_one = whole.of_runs([(0, int(row), 1) for row in rows])
        mine = given | {"query": given["query"][rows], "plan": one_by_one.plan}
        mine["picks"] = random_picks(one_by_one, 90) if picked else None
        assert torch.equal(sparse_attention(**on_cuda(mine)), expected[rows.cuda()]), batch


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_neither_pages_nor_workspace_nor_unseen_keys_are_in_the_bits(dtype: torch.dtype) -> None:
    where, other = (make_pass(4, SPANS, page=page) for page in (64, 32))
    given = inputs(where, dtype, **V4)
    expected = sparse_attention(**on_cuda(given))
    moved = torch.full((other.num_slots, 512), torch.nan, dtype=dtype)
    for sequence in (0, 1):
        for t in range(300):
            moved[other.window_slot(sequence, t)] = given["keys"][where.window_slot(sequence, t)]
        for entry in range(75):
            moved[other.entry_slot(sequence, entry)] = given["keys"][where.entry_slot(sequence, entry)]
    elsewhere = given | {"keys": moved, "plan": other.plan}
    assert torch.equal(sparse_attention(**on_cuda(elsewhere)), expected)
    for workspace in (1, 40_000, 1 << 20):
        assert torch.equal(sparse_attention(**on_cuda(given), workspace_bytes=workspace), expected), workspace


def test_dummy_rows_and_rows_without_keys_are_finite() -> None:
    where = make_latent_pass([(0, 5, 3)])
    given = latent_inputs(where, torch.bfloat16, **LATENT)
    order = torch.cat([where.plan.order, torch.zeros(5, dtype=torch.int64)])
    given |= {"plan": TilePlan(where.plan.groups, order), "query": given["query"].repeat(3, 1, 1)[:8]}
    assert torch.isfinite(sparse_attention(**on_cuda(given))).all()
    nothing = [torch.full((*tiles.positions.shape, 4), -1, dtype=torch.int32) for tiles in where.plan.groups]
    assert sparse_attention(**on_cuda(given | {"picks": nothing})).abs().max() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("form", ["v4", "v3.2"])
@pytest.mark.parametrize(("heads", "dim", "rope"), [(64, 512, 64), (3, 72, 8)])
def test_packed_keys_give_the_bits_of_the_rows_that_they_hold(
    dtype: torch.dtype, form: KeyForm, heads: int, dim: int, rope: int
) -> None:
    where = make_pass(4, SPANS)
    given = inputs(where, dtype, heads=heads, dim=dim)
    packed = PackedKv(pack_kv(given["keys"], rope, form), dim, rope, dtype, form)
    rows = unpack_kv(packed.data, dim, rope, dtype, form)
    picks = random_picks(where, 40)
    expected = sparse_attention(**on_cuda(given | {"keys": rows, "picks": picks}), impl="triton")
    there = replace(packed, data=packed.data.cuda())
    mine = on_cuda(given | {"picks": picks}) | {"keys": there}
    assert torch.equal(sparse_attention(**mine, impl="triton"), expected)


def test_gradients_through_the_kernel_are_near_float64() -> None:
    _, given = case("csa", torch.float32)
    found = {}
    for width in (torch.float32, torch.float64):
        leaves = {name: given[name].to(width).requires_grad_() for name in ("query", "keys", "sink")}
        out = sparse_attention(**(given | leaves))
        weight = torch.linspace(-1, 1, out.shape[-1], device="cuda", dtype=width)
        found[width] = torch.autograd.grad((out * weight).sum(), list(leaves.values()))
    for got, want in zip(found[torch.float32], found[torch.float64], strict=True):
        assert (got.double() - want).norm() <= 2e-5 * want.norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "dim"), [(64, 128), (5, 24)])
def test_index_scores_are_near_float64_and_ignore_tiles_pieces_and_format(
    dtype: torch.dtype, heads: int, dim: int
) -> None:
    whole = make_pass(4, [(0, 200, 400), (1, 900, 1)], longest=1000)
    given = index_inputs(whole, dtype, heads=heads, dim=dim)
    given["gamma"] = given["gamma"].float()
    there = on_cuda(given)
    scored: dict[int, Tensor] = {}
    for tiles in map(tiles_on_cuda, whole.plan.groups):
        got = index_scores(**there, tiles=tiles)
        wide = {name: value.double() for name, value in there.items()}
        expected = index_scores(**wide, tiles=tiles)
        real = torch.arange(tiles.rows_per_tile, device="cuda") < tiles.used[:, None]
        got, expected = got[real], expected[real]
        assert torch.equal(got == -torch.inf, expected == -torch.inf)
        seen = expected > -torch.inf
        assert (got[seen].double() - expected[seen]).norm() <= 2e-6 * expected[seen].norm()
        scored |= dict(zip(tiles.queries.view_as(real)[real].tolist(), got, strict=True))
        pieces = [index_scores(**there, tiles=tiles, blocks=(b, b + 1))[real] for b in range(tiles.num_entry_blocks)]
        assert torch.equal(torch.cat(pieces, -1), got)
        for form in ("v4", "v3.2"):
            packed = PackedIndex(pack_index(there["keys"], form), dim, dtype, form)
            rows = unpack_index(packed.data, dim, dtype, form)
            choices: list[Any] = [(packed, "triton"), (rows, "triton"), (packed, "auto")]
            results = [index_scores(**(there | {"keys": one}), tiles=tiles, impl=impl)[real] for one, impl in choices]
            assert torch.equal(results[0], results[1]), form
            # The CUDA C++ kernel of packed keys has products of its own.
            torch.testing.assert_close(results[2], results[0], rtol=1e-4, atol=1e-3)
        chosen = [pick_entries(**there, tiles=tiles, k=60, workspace_bytes=size)[real] for size in (1, 1 << 28)]
        assert torch.equal(*chosen)
    for start, length in ((599, 1), (300, 70), (223, 3)):
        part = whole.of_runs([(0, start, length)])
        rows = slice(start - 200, start - 200 + length)
        mine = on_cuda(given | {"query": given["query"][rows], "gamma": given["gamma"][rows]})
        for tiles in map(tiles_on_cuda, part.plan.groups):
            got = index_scores(**mine, tiles=tiles)
            real = torch.arange(tiles.rows_per_tile, device="cuda") < tiles.used[:, None]
            for row, scores in zip(tiles.queries.view_as(real)[real].tolist(), got[real], strict=True):
                width = min(scores.shape[-1], scored[row + rows.start].shape[-1])
                assert torch.equal(scores[:width], scored[row + rows.start][:width])
