"""rms_norm: meaning, gradients, independence of rows."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.rms_norm.cases import ROW_INPUTS, inputs
from tests.kernels import laws

# A sum of D squares rounds by at most D/16 + 16 additions in lanes; rsqrt and two products add three roundings.
TOLERANCE = 4e-7


@pytest.mark.parametrize("width", [1, 3, 16, 37, 256])
@pytest.mark.parametrize("rows", [0, 1, 4, 41])
def test_rms_norm_is_near_float64(rows: int, width: int) -> None:
    laws.assert_near_float64(rms_norm, inputs(rows, torch.float64, width=width), TOLERANCE)


def test_extreme_rows_stay_finite_and_right() -> None:
    laws.assert_near_float64(rms_norm, inputs(8, torch.float64, extreme=True), TOLERANCE)


@pytest.mark.parametrize("has_gain", [True, False])
def test_gradients_are_the_numeric_ones(has_gain: bool) -> None:
    given = inputs(3, torch.float64, width=7)
    laws.assert_gradients(rms_norm, given if has_gain else given | {"gain": None})
    laws.assert_gradients_of_kernel(rms_norm, inputs(5, torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, impl: str) -> None:
    given = inputs(laws.ALL_ROWS)
    laws.assert_rows_ignore_neighbours(lambda x, **rest: rms_norm(x.to(dtype), **rest, impl=impl), given, ROW_INPUTS)


def test_a_column_slice_is_read_in_place_and_gives_the_bits_of_a_copy() -> None:
    wide = torch.randn(5, 64)
    assert torch.equal(rms_norm(wide[:, 8:40], None, 1e-6), rms_norm(wide[:, 8:40].contiguous(), None, 1e-6))


def test_heads_are_normed_each_on_its_own() -> None:
    x = torch.randn(4, 3, 16)
    assert torch.equal(rms_norm(x, None, 1e-6)[:, 1], rms_norm(x[:, 1].contiguous(), None, 1e-6))


def test_the_cast_comes_once_after_the_gain() -> None:
    given = inputs(6)
    once = rms_norm(given["x"].bfloat16(), given["gain"], given["eps"])
    exact = rms_norm(given["x"].bfloat16().double(), given["gain"].double(), given["eps"], impl="reference")
    assert ((once.double() - exact).abs() <= exact.abs() * 2**-8).all()


def test_a_gain_of_another_width_is_refused_with_both_shapes() -> None:
    with pytest.raises(KernelInputError, match=r"\(3,\).*\[4\]"):
        rms_norm(torch.zeros(2, 4), torch.zeros(3), 1e-6)
