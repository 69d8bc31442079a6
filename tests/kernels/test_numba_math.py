"""The elementwise functions of CPU kernels: accurate, and with the same bits in vector code and its remainder."""

from typing import Any

import numpy as np
import pytest

from benthic.kernels.numba_kernel import kernel
from benthic.kernels.numba_math import exp32, sigmoid32, softplus32, sum_squares


@kernel
def exponentials(x: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = exp32(x[i])


@kernel
def sigmoids(x: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = sigmoid32(x[i])


@kernel
def softpluses(x: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = softplus32(x[i])


@kernel
def squares(x: Any) -> Any:
    return sum_squares(x, np.empty(16, np.float32))


def applied(function: Any, x: Any) -> Any:
    y = np.empty_like(x)
    function(x, y)
    return y


def test_exp_is_within_one_unit_in_the_last_place() -> None:
    x = np.linspace(-86.9, 87.9, 400_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(applied(exponentials, x) - exact) / unit).max() < 1.0


def test_exp_of_the_extremes_is_zero_finite_or_nan() -> None:
    x = np.array([-np.inf, -1e30, -88.0, 0.0, 1e30, np.inf, np.nan], np.float32)
    y = applied(exponentials, x)
    assert y[:4].tolist() == [0.0, 0.0, 0.0, 1.0]
    assert np.isfinite(y[4:6]).all()
    assert np.isnan(y[6])


def test_sigmoid_is_near_float64_and_within_its_bounds() -> None:
    x = np.linspace(-100, 100, 20_001).astype(np.float32)
    y = applied(sigmoids, x)
    assert ((y >= 0) & (y <= 1)).all()
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=4e-7, atol=1e-37)


def test_softplus_is_near_float64_from_underflow_to_identity() -> None:
    x = np.linspace(-86, 86, 40_001).astype(np.float32)
    exact = np.logaddexp(0, x.astype(np.float64))
    np.testing.assert_allclose(applied(softpluses, x), exact, rtol=2.5e-7)


@pytest.mark.parametrize("function", [exponentials, sigmoids, softpluses])
def test_a_value_has_the_same_bits_wherever_it_stands(function: Any) -> None:
    x = np.random.randn(67).astype(np.float32) * 20
    whole = applied(function, x)
    for start in range(67):
        for end in (start + 1, min(start + 9, 67), 67):
            assert (applied(function, x[start:end].copy()) == whole[start:end]).all()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 300])
def test_sums_of_squares_are_near_float64(size: int) -> None:
    x = np.random.randn(size).astype(np.float32)
    assert squares(x) == pytest.approx(float((x.astype(np.float64) ** 2).sum()), rel=1e-6, abs=1e-30)
