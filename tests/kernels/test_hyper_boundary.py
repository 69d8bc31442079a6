"""hyper_boundary: on the CPU it is its parts, bit for bit; its kernel's logic is for test_glue_interpreted."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.hyper_boundary import hyper_boundary, hyper_exit
from benthic.kernels.hyper_boundary.cases import ROW_INPUTS, boundary_inputs, exit_inputs, picked_rows
from benthic.kernels.hyper_connection import hyper_head, hyper_post, hyper_pre
from benthic.kernels.quantize import quantize_rows
from benthic.kernels.rms_norm import rms_norm
from tests.kernels import laws


def merged_by_hand(given: dict[str, Any]) -> Tensor:
    if given["output"] is None:
        return given["streams"]
    output = given["output"]
    if given["addend"] is not None:
        output = (output.float() + given["addend"].float()).to(given["streams"].dtype)
    return hyper_post(output, given["streams"], given["post"], given["comb"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("first", [False, True])
def test_a_boundary_is_its_parts_to_the_bit(first: bool, dtype: torch.dtype) -> None:
    given = boundary_inputs(9, dtype, size=256, first=first)
    if not first:
        given["addend"] = torch.randn(9, 256)
    got = hyper_boundary(**given, linear_scale="ue8m0")
    streams = merged_by_hand(given)
    numbers = [given[name] for name in ("fn", "scale", "base", "eps", "iters", "norm_eps")]
    mix = hyper_pre(streams, *numbers)
    normed = rms_norm(mix.input, given["gain"], given["norm_eps"])
    for a, b in zip(got[:4], (streams, normed, mix.post, mix.comb), strict=True):
        assert torch.equal(a, b)
    rounded = quantize_rows(normed, "ue8m0")
    assert got.quantized is not None
    assert torch.equal(got.quantized.data.view(torch.uint8), rounded.data.view(torch.uint8))
    assert torch.equal(got.quantized.scale, rounded.scale)


def test_an_output_in_parts_is_their_sum_in_order() -> None:
    given, picked = boundary_inputs(9, torch.bfloat16, size=256), picked_rows(9, 256)
    outputs, total = picked.outputs.view(9, 6, 256).float(), torch.zeros(9, 256)
    for k in range(6):
        total += outputs[:, k]
    total[5:] = 0  # rows that are not live
    assert torch.equal(picked.summed(), (total + picked.shared.float()).bfloat16())
    got = hyper_boundary(**(given | {"output": picked}), linear_scale="ue8m0")
    expected = hyper_boundary(**(given | {"output": picked.summed()}), linear_scale="ue8m0")
    assert all(torch.equal(a, b) for a, b in zip(got[:4], expected[:4], strict=True))


def test_an_exit_is_its_parts_to_the_bit() -> None:
    given = exit_inputs(9, size=21)
    got = hyper_exit(**given)
    streams = merged_by_hand(given)
    numbers = [given[name] for name in ("fn", "scale", "base", "eps", "norm_eps")]
    assert torch.equal(got.streams, streams)
    assert torch.equal(got.hidden, rms_norm(hyper_head(streams, *numbers), given["gain"], given["norm_eps"]))


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    for first in (False, True):
        given = boundary_inputs(laws.ALL_ROWS, size=128, first=first)
        laws.assert_rows_ignore_neighbours(hyper_boundary, given, ROW_INPUTS)
    laws.assert_rows_ignore_neighbours(hyper_exit, exit_inputs(laws.ALL_ROWS, size=128), ROW_INPUTS)


def test_gradients_reach_every_input() -> None:
    given = boundary_inputs(3, size=5)
    leaves = {k: v.requires_grad_() for k, v in given.items() if isinstance(v, Tensor)}
    made = hyper_boundary(**given)
    (made.input.sum() + made.streams.sum() + (made.comb * torch.randn(3, 4, 4)).sum() + made.post.sum()).backward()
    assert all(leaf.grad is not None and bool(leaf.grad.abs().sum() > 0) for leaf in leaves.values())


def test_inputs_that_do_not_belong_together_are_refused() -> None:
    given = boundary_inputs(2, size=8)
    with pytest.raises(KernelInputError, match="belong together"):
        hyper_boundary(**(given | {"post": None}))
    with pytest.raises(KernelInputError, match=r"\[24, 32\]"):
        hyper_boundary(**(given | {"fn": given["fn"][:23]}))
    with pytest.raises(KernelInputError, match=r"gain has shape \(7,\)"):
        hyper_boundary(**(given | {"gain": given["gain"][:7]}))
