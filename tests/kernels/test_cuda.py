"""The operations on CUDA: near the float64 reference, forward and backward, and never waiting for the host."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.kernels.cross_entropy import cases as cross_entropy_cases
from benthic.kernels.cross_entropy import linear_cross_entropy, token_logprobs
from benthic.kernels.grouped_linear import cases as grouped_cases
from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.hyper_connection import cases as hyper_cases
from benthic.kernels.hyper_connection import hyper_head, hyper_post, hyper_pre, sinkhorn
from benthic.kernels.linear import cases as linear_cases
from benthic.kernels.linear import linear
from benthic.kernels.moe_permute import moe_combine, moe_dispatch, moe_permute
from benthic.kernels.moe_permute.cases import picks
from benthic.kernels.moe_route import cases as route_cases
from benthic.kernels.moe_route import moe_route
from benthic.kernels.newton_schulz import newton_schulz
from benthic.kernels.rms_norm import cases as norm_cases
from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.sample import cases as sample_cases
from benthic.kernels.sample import sample
from benthic.kernels.swiglu import cases as swiglu_cases
from benthic.kernels.swiglu import swiglu
from tests.kernels.laws import float32, results

pytestmark = pytest.mark.gpu

OPERATIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "rms_norm": (rms_norm, norm_cases.inputs(37, torch.float64)),
    "swiglu": (swiglu, swiglu_cases.inputs(37, torch.float64)),
    "moe_route": (moe_route, route_cases.inputs(37, torch.float64)),
    "hyper_pre": (hyper_pre, hyper_cases.pre_inputs(37, torch.float64)),
    "hyper_head": (hyper_head, hyper_cases.head_inputs(37, torch.float64)),
    "hyper_post": (hyper_post, hyper_cases.post_inputs(37, torch.float64)),
    "sinkhorn": (sinkhorn, hyper_cases.sinkhorn_inputs(37, torch.float64)),
    "linear": (linear, linear_cases.inputs(37, torch.float64)),
    "token_logprobs": (token_logprobs, cross_entropy_cases.inputs(37, torch.float64)),
    "linear_cross_entropy": (linear_cross_entropy, cross_entropy_cases.loss_inputs(37, torch.float64)),
}


@contextmanager
def no_waiting() -> Iterator[None]:
    """Any read of a tensor's values by the host raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_cuda(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cuda() if isinstance(value, Tensor) else value for name, value in inputs.items()}


def value_and_gradients(op: Callable[..., Any], inputs: dict[str, Any]) -> list[Tensor]:
    names = [n for n, v in inputs.items() if isinstance(v, Tensor) and v.is_floating_point() and n != "weights"]
    leaves = {name: inputs[name].detach().requires_grad_() for name in names}
    outputs = [out for out in results(op(**(inputs | leaves))) if out.is_floating_point()]
    total = sum(
        (out * torch.linspace(-1, 1, out.shape[-1] if out.dim() else 1, device=out.device)).sum() for out in outputs
    )
    assert isinstance(total, Tensor)
    return [*outputs, *torch.autograd.grad(total, list(leaves.values()), allow_unused=True)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_and_gradients_are_near_float64_without_waiting(name: str) -> None:
    op, given = OPERATIONS[name]
    expected = value_and_gradients(op, given)
    inputs = on_cuda(float32(given))
    value_and_gradients(op, inputs)  # compiles what must be compiled
    with no_waiting():
        got = value_and_gradients(op, inputs)
    for a, b in zip(got, expected, strict=True):
        if b is not None:
            # Sinkhorn's gradient nearly vanishes: what is left of it is rounding of its terms.
            assert (a.double().cpu() - b).norm() <= 2e-5 * b.norm().clamp(min=1e-4), name


def test_the_path_through_experts_waits_for_nobody_and_repeats_its_gradients_bit_for_bit() -> None:
    x = torch.randn(301, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(8, 64, 64, device="cuda").div(8).requires_grad_()
    logits = torch.randn(301, 8, device="cuda").requires_grad_()

    def gradients() -> tuple[Tensor, ...]:
        routing = moe_route(logits, top_k=3, scale=1.5)
        plan = moe_permute(routing.experts, 8, 1)
        y = grouped_linear(moe_dispatch(x, plan), weight, plan.group_ends)
        return torch.autograd.grad(moe_combine(y, plan, routing.weights).square().sum(), (x, weight, logits))

    first = gradients()
    with no_waiting():
        second = gradients()
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("sizes", [s for s in grouped_cases.SIZES if sum(s)], ids=str)
def test_grouped_products_in_bfloat16_are_those_of_the_loop(sizes: tuple[int, ...]) -> None:
    given = on_cuda(grouped_cases.inputs(sizes, shape=(64, 64)))
    given["x"] = given["x"].bfloat16()
    grads = {}
    for impl in ("auto", "reference"):
        x, weight = given["x"].detach().requires_grad_(), given["weight"].detach().requires_grad_()
        y = grouped_linear(x, weight, given["group_ends"], impl=impl)
        grads[impl] = [y, *torch.autograd.grad(y.float().square().sum(), (x, weight))]
    for a, b in zip(grads["auto"], grads["reference"], strict=True):
        assert (a.float() - b.float()).norm() <= 1e-2 * b.float().norm()


def test_plans_and_draws_are_those_of_the_cpu() -> None:
    experts = picks("random", rows=200)
    on_device, here = moe_permute(experts.cuda(), 8, 1), moe_permute(experts, 8, 1)
    assert all(torch.equal(a.cpu(), b) for a, b in zip(on_device, here, strict=True))
    given = sample_cases.inputs(500)
    agree = sample(**on_cuda(given)).cpu() == sample(**given)
    assert agree.float().mean() > 0.99  # exp may differ in its last bit


def test_newton_schulz_in_bfloat16_keeps_its_tolerance() -> None:
    values = torch.linalg.svdvals(newton_schulz(torch.randn(3, 96, 256, device="cuda")).float())
    assert (values - 1).abs().max() <= 1e-2
