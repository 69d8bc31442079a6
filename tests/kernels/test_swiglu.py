"""swiglu: clamps, the weight before the cast, gradients, independence of rows."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.swiglu import swiglu
from benthic.kernels.swiglu.cases import ROW_INPUTS, inputs
from tests.kernels import laws

# e^x within one unit, a sum, a division and three products: six roundings at most.
TOLERANCE = 6e-7


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 5, 41])
def test_swiglu_is_near_float64(rows: int, extreme: bool) -> None:
    laws.assert_near_float64(swiglu, inputs(rows, torch.float64, extreme=extreme), TOLERANCE)


def test_the_gate_is_clamped_from_above_only_and_up_from_both_sides() -> None:
    gate_up = torch.tensor([[50.0, -50.0, 1.0, 1.0, 1.0, 1.0, 50.0, -50.0]])
    got = swiglu(gate_up, 2.0)
    gate = torch.tensor([2.0, -50.0, 1.0, 1.0], dtype=torch.float64)
    expected = gate / (1 + torch.exp(-gate)) * torch.tensor([1.0, 1.0, 2.0, -2.0])
    torch.testing.assert_close(got[0].double(), expected, rtol=1e-6, atol=1e-7)


def test_the_limit_changes_the_result_where_it_bites() -> None:
    given = inputs(5, extreme=True)
    assert not torch.equal(swiglu(**given), swiglu(**(given | {"limit": 1e9})))


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_without_a_limit_nothing_is_clamped(impl: str) -> None:
    given = inputs(9, extreme=True)
    gate, up = given["gate_up"].double().chunk(2, dim=-1)
    expected = gate / (1 + torch.exp(-gate)) * up
    torch.testing.assert_close(swiglu(given["gate_up"], None, impl=impl).double(), expected, rtol=1e-6, atol=1e-7)


def test_gradients_are_the_numeric_ones_and_zero_beyond_the_clamp() -> None:
    laws.assert_gradients(swiglu, inputs(3, torch.float64, width=4))
    laws.assert_gradients_of_kernel(swiglu, inputs(7, torch.float64))
    x = torch.tensor([[50.0, 50.0], [-500.0, 0.5]], requires_grad=True)
    swiglu(x, 2.0).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad[0], torch.zeros(2))
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("width", [3, 19, 128])
def test_a_row_has_the_same_bits_in_any_batch(width: int, impl: str) -> None:
    laws.assert_rows_ignore_neighbours(
        lambda **given: swiglu(**given, impl=impl), inputs(laws.ALL_ROWS, width=width), ROW_INPUTS
    )


def test_the_weight_multiplies_before_the_cast() -> None:
    given = inputs(9)
    got = swiglu(given["gate_up"].bfloat16(), given["limit"], given["weights"])
    exact = swiglu(given["gate_up"].bfloat16().float(), given["limit"], given["weights"])
    assert torch.equal(got, exact.bfloat16())


def test_an_odd_number_of_columns_is_refused() -> None:
    with pytest.raises(KernelInputError, match="2F"):
        swiglu(torch.zeros(2, 5), 1.0)
