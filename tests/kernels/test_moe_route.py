"""moe_route: exact selection, tie order, finite weights, gradients, independence of rows."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.moe_route import Score, moe_route
from benthic.kernels.moe_route.cases import ROW_INPUTS, inputs
from tests.kernels import laws

SCORES: tuple[Score, ...] = ("sqrtsoftplus", "sigmoid", "softmax")
# Scores round a few times; a weight is a quotient of one by the sum of three.
TOLERANCE = 1e-6


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("rows", [0, 1, 41])
def test_weights_are_near_float64_and_experts_equal(rows: int, score: Score) -> None:
    laws.assert_near_float64(moe_route, inputs(rows, torch.float64) | {"score": score}, TOLERANCE)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_selection_equals_an_exact_sort_with_ties_to_the_lower_expert(impl: str) -> None:
    given = inputs(500, tied=True)
    routing = moe_route(**given, impl=impl)
    for logits, experts in zip(given["logits"].tolist(), routing.experts.tolist(), strict=True):
        assert experts == sorted(range(16), key=lambda e: (-logits[e], e))[:3]


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_narrow_band_of_biases_decides_as_in_float64(impl: str) -> None:
    logits = torch.zeros(1, 16)
    bias = 7.0 + 0.001 * torch.randperm(16)
    routing = moe_route(logits, top_k=5, scale=1.0, bias=bias, impl=impl)
    assert routing.experts[0].tolist() == bias.double().argsort(descending=True)[:5].tolist()
    torch.testing.assert_close(routing.weights, torch.full((1, 5), 0.2))


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("score", SCORES)
def test_weights_and_gradients_are_finite_where_all_scores_underflow(score: Score, impl: str) -> None:
    given = inputs(8, extreme=True)
    logits = given["logits"].requires_grad_()
    weights = moe_route(**given, score=score, impl=impl).weights
    torch.testing.assert_close(weights.sum(-1), torch.full((8,), 1.5))
    weights.square().sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_are_the_numeric_ones(score: Score, normalize: bool) -> None:
    def op(logits: torch.Tensor, **rest: object) -> torch.Tensor:
        return moe_route(logits, top_k=3, scale=1.5, score=score, normalize=normalize, **rest).weights  # type: ignore[arg-type]

    given = {"logits": torch.randn(4, 8, dtype=torch.float64)}
    laws.assert_gradients(op, given)
    laws.assert_gradients_of_kernel(op, given)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_row_has_the_same_bits_in_any_batch(impl: str, score: Score) -> None:
    laws.assert_rows_ignore_neighbours(
        lambda **given: moe_route(**given, score=score, impl=impl), inputs(laws.ALL_ROWS), ROW_INPUTS
    )


def test_torch_sigmoid_would_break_the_rows_law_on_this_machine() -> None:
    given = {"logits": torch.randn(laws.ALL_ROWS, 5) * 3}
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("no vector code, so no tail")
    assert laws.rows_that_differ(lambda logits: torch.sigmoid(logits), given, ROW_INPUTS)


def test_given_experts_are_taken_in_their_order() -> None:
    given = inputs(6)
    experts = torch.randint(0, 16, (6, 3))
    routing = moe_route(**given, experts=experts)
    assert torch.equal(routing.experts, experts)
    scores = torch.log1p(given["logits"].double().exp()).sqrt().gather(1, experts)
    torch.testing.assert_close(routing.weights.double(), 1.5 * scores / scores.sum(-1, keepdim=True), rtol=1e-6, atol=0)


@pytest.mark.parametrize("top_k", [0, 17])
def test_an_impossible_number_of_experts_is_refused(top_k: int) -> None:
    with pytest.raises(KernelInputError, match=rf"top_k \({top_k}\).*16"):
        moe_route(torch.zeros(2, 16), top_k=top_k, scale=1.0)
