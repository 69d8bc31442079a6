"""sparse_attention: a loop over visible keys, the sink, gradients, and rows that ignore their neighbours."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.index_scores import all_visible
from benthic.kernels.kv_storage import PackedKv, pack_kv, unpack_kv
from benthic.kernels.sparse_attention import op, sparse_attention
from benthic.kernels.sparse_attention.cases import WINDOW, Pass, inputs, make_pass, random_picks
from tests.kernels import laws

SPANS = ((0, 0, 70), (1, 250, 1), (0, 190, 1), (1, 0, 3))
# Scores are sums of 16 products and weights exponentials; 300 keys are averaged.
TOLERANCE = 3e-6


def visible(where: Pass, sequence: int, position: int) -> list[int]:
    """Slots of the keys that a row may read: its window, then complete compressed blocks (model.md 2.4, 2.5)."""
    window = range(max(position - WINDOW + 1, 0), position + 1)
    entries = range((position + 1) // where.ratio) if where.ratio else ()
    return [where.window_slot(sequence, j) for j in window] + [where.entry_slot(sequence, w) for w in entries]


def loop(where: Pass, query: Tensor, keys: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Row by row and head by head, in float64."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    for run in where.runs:
        for offset in range(run.length):
            row = run.start_row + offset
            k = keys[visible(where, run.sequence, run.start + offset)].double()
            for head in range(query.shape[1]):
                weights = (k @ query[row, head].double() * scale).exp()
                out[row, head] = weights @ k / (weights.sum() + math.exp(sink[head]))
    return out


@pytest.mark.parametrize("ratio", [0, 4, 128])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_attention_is_the_loop_over_window_and_entries(ratio: int, impl: str) -> None:
    where = make_pass(ratio, SPANS)
    given = inputs(where)
    expected = loop(where, given["query"], given["keys"], given["sink"], given["scale"])
    torch.testing.assert_close(sparse_attention(**given, impl=impl).double(), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_only_picked_entries_count(impl: str) -> None:
    where = make_pass(4, SPANS)
    given = inputs(where)
    everything = [all_visible(tiles, 75) for tiles in where.plan.groups]
    nothing = [torch.full_like(chosen, -1) for chosen in everything]
    assert torch.equal(sparse_attention(**given, picks=everything, impl=impl), sparse_attention(**given, impl=impl))
    # Without entries a row sees its window, as in a layer of ratio 0.
    bare = sparse_attention(**given, picks=nothing, impl=impl)
    window = replace(where, ratio=0)
    expected = loop(window, given["query"], given["keys"], given["sink"], given["scale"])
    torch.testing.assert_close(bare.double(), expected, rtol=0, atol=TOLERANCE)


def test_the_numba_kernel_agrees_with_the_reference_on_random_choices() -> None:
    where = make_pass(4, SPANS)
    given, picks = inputs(where), random_picks(where, 40)
    ours, reference = (sparse_attention(**given, picks=picks, impl=impl) for impl in ("cpu", "reference"))
    torch.testing.assert_close(ours, reference, rtol=0, atol=TOLERANCE)


def test_a_large_sink_takes_everything_and_extreme_scores_stay_finite() -> None:
    where = make_pass(4, SPANS)
    given = inputs(where)
    assert sparse_attention(**(given | {"sink": torch.full((4,), 1e4)})).abs().max() == 0.0
    assert torch.isfinite(sparse_attention(**(given | {"query": given["query"] * 1e4}))).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("heads", [1, 4])
def test_a_row_alone_has_the_bits_it_has_in_a_long_run(dtype: torch.dtype, impl: str, heads: int) -> None:
    torch.manual_seed(3)
    whole = make_pass(4, [(0, 0, 300), (1, 5, 130)])
    given = inputs(whole, dtype, heads=heads)
    expected = sparse_attention(**given, impl=impl)
    for start, length in [(299, 1), (0, 1), (63, 2), (128, 64), (130, 100), (17, 1)]:
        part = whole.of_runs([(0, start, length)])
        rows = given | {"query": given["query"][start : start + length], "plan": part.plan}
        assert torch.equal(sparse_attention(**rows, impl=impl), expected[start : start + length]), (start, length)


def test_products_have_the_bits_of_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    where = make_pass(4, [(0, 299, 1), (1, 5, 1), (1, 150, 1), (0, 100, 9), (1, 2900, 90)], longest=3000)
    assert any(
        op._is_sparse(tiles, torch.zeros(1, 30), torch.zeros(1, 8, 64), 1 << 30) and tiles.rows_per_tile == 64
        for tiles in where.plan.groups
    )
    given, picks = inputs(where, dim=64, heads=8), random_picks(where, 30)
    if not op.chains_agree_here(64, 64):
        pytest.skip("this library adds in another order, so decode takes its products anyway")
    chains = sparse_attention(**given, picks=picks)
    monkeypatch.setattr(op, "chains_agree_here", lambda *dims: False)
    assert torch.equal(sparse_attention(**given, picks=picks), chains)


def test_gradients_are_the_numeric_ones() -> None:
    where = make_pass(4, [(0, 20, 2), (1, 9, 1)], longest=64)
    given = inputs(where, torch.float64, heads=2, dim=3)
    read = sorted({slot for seq, t in ((0, 20), (0, 21), (1, 9)) for slot in visible(where, seq, t)})
    keys, some = given.pop("keys"), torch.tensor(read)

    def op(few_keys: Tensor, **rest: object) -> Tensor:
        return sparse_attention(keys=keys.index_copy(0, some, few_keys), **rest)  # type: ignore[arg-type]

    laws.assert_gradients(op, {"few_keys": keys[some]} | given)


def test_gradients_through_the_kernel_are_the_references() -> None:
    where = make_pass(4, SPANS)
    laws.assert_gradients_of_kernel(sparse_attention, inputs(where, torch.float64))


def test_a_sink_of_another_number_of_heads_is_refused() -> None:
    given = inputs(make_pass(0, SPANS))
    with pytest.raises(KernelInputError, match=r"sink has shape \(3,\)"):
        sparse_attention(**(given | {"sink": torch.zeros(3)}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_packed_keys_give_the_bits_of_the_rows_that_they_hold(dtype: torch.dtype, impl: str) -> None:
    where = make_pass(4, [*SPANS, (1, 90, 9)], page=32)
    given = inputs(where, dtype, dim=72)
    packed = PackedKv(pack_kv(given["keys"], 8), 72, 8, dtype)
    rows = unpack_kv(packed.data, 72, 8, dtype)
    picks = random_picks(where, 40)
    from_rows = sparse_attention(**(given | {"keys": rows}), picks=picks, impl=impl)
    assert torch.equal(sparse_attention(**(given | {"keys": packed}), picks=picks, impl=impl), from_rows)
