"""The boundary's Triton kernels on a CPU, in Triton's interpreter: tiny odd shapes against float64.

    TRITON_INTERPRET=1 pytest tests/kernels/test_boundary_interpreted.py

The variable must stand before Triton is imported, so these tests are skipped without it. Bits are for the device: the
interpreter's products are numpy's.
"""

import os

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.hyper_boundary import hyper_boundary, hyper_exit, kernel  # noqa: E402
from benthic.kernels.hyper_boundary.cases import boundary_inputs, exit_inputs  # noqa: E402
from benthic.kernels.quantize import quantize_rows  # noqa: E402

NAMES = ("output", "addend", "streams", "post", "comb", "fn", "scale", "base", "gain")


def double(inputs: dict) -> dict:
    return {name: value.double() if isinstance(value, Tensor) else value for name, value in inputs.items()}


def assert_near(got: Tensor, exact: Tensor) -> None:
    assert got.shape == exact.shape
    torch.testing.assert_close(got.double(), exact, rtol=0, atol=4e-6)


@pytest.mark.parametrize("few_rows", [0, 256], ids=["many", "few"])
@pytest.mark.parametrize(("size", "rows"), [(21, 1), (21, 35), (256, 5), (1152, 3)])
@pytest.mark.parametrize("closing", ["first", "output", "output and addend"])
def test_a_boundary_is_near_float64(
    few_rows: int, size: int, rows: int, closing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "FEW_ROWS", few_rows)
    given = boundary_inputs(rows, size=size, first=closing == "first")
    if closing == "output and addend":
        given["addend"] = torch.randn(rows, size)
    exact, rounds = hyper_boundary(**double(given), impl="reference"), size % 128 == 0
    rest = (given["eps"], given["iters"], given["norm_eps"], rounds)
    got = kernel.hyper_boundary_triton(*(given[name] for name in NAMES), *rest, interpreted=True)
    for a, b in zip(got[:4], (exact.streams, exact.input, exact.post, exact.comb), strict=True):
        assert_near(a, b)
    if rounds:
        rounded = quantize_rows(got[1])
        assert torch.equal(got[4].view(torch.uint8), rounded.data.view(torch.uint8))
        assert torch.equal(got[5], rounded.scale)


@pytest.mark.parametrize("few_rows", [0, 256], ids=["many", "few"])
@pytest.mark.parametrize(("size", "rows"), [(21, 19), (256, 2)])
def test_an_exit_is_near_float64(few_rows: int, size: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "FEW_ROWS", few_rows)
    given = exit_inputs(rows, size=size)
    exact = hyper_exit(**double(given), impl="reference")
    rest = (given["eps"], given["norm_eps"])
    got = kernel.hyper_exit_triton(*(given[name] for name in NAMES), *rest, interpreted=True)
    for a, b in zip(got, exact, strict=True):
        assert_near(a, b)


def test_streams_may_be_one_row_seen_four_times() -> None:
    given = boundary_inputs(3, size=64, first=True)
    given["streams"] = torch.randn(3, 64)[:, None].expand(-1, 4, -1)
    exact = hyper_boundary(**double(given), impl="reference")
    rest = (given["eps"], given["iters"], given["norm_eps"], False)
    got = kernel.hyper_boundary_triton(*(given[name] for name in NAMES), *rest, interpreted=True)
    assert_near(got[1], exact.input)
