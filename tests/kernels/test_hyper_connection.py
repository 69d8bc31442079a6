"""hyper_connection: the mixing's direction, Sinkhorn's limits, gradients, independence of rows."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.hyper_connection import hyper_head, hyper_post, hyper_pre, sinkhorn
from benthic.kernels.hyper_connection.cases import (
    POST_ROW_INPUTS,
    PRE_ROW_INPUTS,
    head_inputs,
    post_inputs,
    pre_inputs,
    sinkhorn_inputs,
)
from benthic.kernels.hyper_connection.sinkhorn import sinkhorn_ref
from benthic.kernels.linear import by_columns
from tests.kernels import laws

# Logits are sums of n*D products; through softmax and 39 normalisations errors stay of the size of the input's.
TOLERANCE = 4e-6


@pytest.mark.parametrize("rows", [0, 1, 2, 33, 41])
def test_pre_head_and_post_are_near_float64(rows: int) -> None:
    laws.assert_near_float64(hyper_pre, pre_inputs(rows, torch.float64), TOLERANCE)
    laws.assert_near_float64(hyper_head, head_inputs(rows, torch.float64), TOLERANCE)
    laws.assert_near_float64(hyper_post, post_inputs(rows, torch.float64), TOLERANCE)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_other_numbers_of_streams_work(streams: int) -> None:
    laws.assert_near_float64(hyper_pre, pre_inputs(5, torch.float64, streams=streams), TOLERANCE)
    laws.assert_near_float64(hyper_post, post_inputs(5, torch.float64, streams=streams), TOLERANCE)


def loop_sinkhorn(logits: Tensor, eps: float, iters: int) -> Tensor:
    """One matrix, entry by entry, in float64 (model.md 2.2 step 6)."""
    rows = [[float(v) for v in row] for row in logits.double().softmax(-1) + eps]
    n = len(rows)
    for iteration in range(iters):
        if iteration:
            rows = [[v / (sum(row) + eps) for v in row] for row in rows]
        sums = [sum(rows[i][j] for i in range(n)) + eps for j in range(n)]
        rows = [[rows[i][j] / sums[j] for j in range(n)] for i in range(n)]
    return torch.tensor(rows)


@pytest.mark.parametrize("iters", [1, 3, 20])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_sinkhorn_is_the_loop_of_the_specification(iters: int, impl: str) -> None:
    logits = sinkhorn_inputs(3)["comb_logits"]
    logits[0] = -40.0
    logits[0, 1, 2] = 40.0
    got = sinkhorn(logits, 1e-6, iters, impl=impl)
    expected = torch.stack([loop_sinkhorn(one, 1e-6, iters) for one in logits])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spread", [2.0, 30.0, 40.0])
def test_columns_sum_to_one(spread: float) -> None:
    comb = sinkhorn(**sinkhorn_inputs(50, spread=spread))
    torch.testing.assert_close(comb.sum(1), torch.ones(50, 4), rtol=0, atol=1e-4)


@pytest.mark.parametrize("spread", [2.0, 30.0])
@pytest.mark.parametrize("size", [1.0, 1e4, 1e6])
def test_sinkhorns_gradient_is_finite_and_right_for_large_gradients(spread: float, size: float) -> None:
    given = sinkhorn_inputs(20, spread=spread)
    logits, upstream = given["comb_logits"].requires_grad_(), torch.randn(20, 4, 4) * size
    sinkhorn(**given).backward(upstream)
    exact = logits.detach().double().requires_grad_()
    sinkhorn_ref(exact, 1e-6, 20).backward(upstream.double())
    assert logits.grad is not None
    assert exact.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad.double() - exact.grad).abs().max() <= 1e-3 * exact.grad.abs().max()


def test_streams_mix_over_the_first_index_of_comb() -> None:
    # Stream 0 -> 1 -> 2 -> 3 -> 0; a transposed mix would send it the other way.
    comb = torch.zeros(1, 4, 4)
    for i in range(4):
        comb[0, i, (i + 1) % 4] = 1.0
    streams = torch.arange(1.0, 5.0).view(1, 4, 1).expand(1, 4, 3)
    for impl in ("auto", "reference"):
        mixed = hyper_post(torch.zeros(1, 3), streams, torch.zeros(1, 4), comb, impl=impl)
        assert mixed[0, :, 0].tolist() == [4.0, 1.0, 2.0, 3.0]


def test_post_gates_have_no_eps_and_pre_gates_do() -> None:
    given = pre_inputs(1)
    given["fn"] = torch.zeros_like(given["fn"])
    given["base"] = torch.full_like(given["base"], -30.0)
    given["streams"] = torch.ones_like(given["streams"])
    mix = hyper_pre(**(given | {"eps": 1e-3}))
    assert (mix.post < 1e-12).all()
    torch.testing.assert_close(mix.input, torch.full_like(mix.input, 4e-3), rtol=1e-4, atol=0)


def test_gradients_are_the_numeric_ones() -> None:
    laws.assert_gradients(hyper_pre, pre_inputs(2, torch.float64, size=3, streams=2))
    laws.assert_gradients(hyper_pre, pre_inputs(1, torch.float64, size=2))
    laws.assert_gradients(hyper_head, head_inputs(3, torch.float64, size=3))
    laws.assert_gradients(hyper_post, post_inputs(2, torch.float64, size=3))
    laws.assert_gradients(sinkhorn, sinkhorn_inputs(2, torch.float64))


def test_gradients_through_the_kernels_are_the_references() -> None:
    laws.assert_gradients_of_kernel(hyper_pre, pre_inputs(6, torch.float64), 3e-5)
    laws.assert_gradients_of_kernel(hyper_head, head_inputs(6, torch.float64))
    laws.assert_gradients_of_kernel(hyper_post, post_inputs(6, torch.float64))
    laws.assert_gradients_of_kernel(sinkhorn, sinkhorn_inputs(6, torch.float64), 3e-5)


def test_sinkhorn_keeps_only_its_input_for_backward() -> None:
    kept: list[int] = []

    def count(x: Tensor) -> Tensor:
        kept.append(x.numel())
        return x

    given = sinkhorn_inputs(7)
    given["comb_logits"].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        sinkhorn(**given)
    assert kept == [7 * 16]


@pytest.mark.parametrize("size", [21, 256])
@pytest.mark.parametrize("laid_out", [False, True])
def test_a_row_has_the_same_bits_in_any_batch(size: int, laid_out: bool) -> None:
    given, head = pre_inputs(laws.ALL_ROWS, size=size), head_inputs(laws.ALL_ROWS, size=size)
    if laid_out:
        given["fn"], head["fn"] = by_columns(given["fn"], 4), by_columns(head["fn"], 4)
    laws.assert_rows_ignore_neighbours(hyper_pre, given, PRE_ROW_INPUTS)
    laws.assert_rows_ignore_neighbours(hyper_head, head, PRE_ROW_INPUTS)
    laws.assert_rows_ignore_neighbours(hyper_post, post_inputs(laws.ALL_ROWS, size=size), POST_ROW_INPUTS)


def test_the_layout_of_fn_leaves_the_bits() -> None:
    given = pre_inputs(laws.ALL_ROWS, size=256)
    laid_out = given | {"fn": by_columns(given["fn"], 4)}
    assert all(torch.equal(a, b) for a, b in zip(hyper_pre(**given), hyper_pre(**laid_out), strict=True))


@pytest.mark.parametrize("count", [1, 5, 31, 32, 33])
def test_sinkhorn_of_any_number_of_rows_has_the_bits_of_each_alone(count: int) -> None:
    given = sinkhorn_inputs(count)
    whole = sinkhorn(**given)
    alone = [sinkhorn(**(given | {"comb_logits": one[None]})) for one in given["comb_logits"]]
    assert torch.equal(whole, torch.cat(alone))


def test_a_projection_of_another_shape_is_refused_with_all_shapes() -> None:
    given = pre_inputs(2)
    with pytest.raises(KernelInputError, match=r"\[24, n\*D\]"):
        hyper_pre(**(given | {"fn": given["fn"][:23]}))
