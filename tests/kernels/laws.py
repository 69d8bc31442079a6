"""The laws that every operation obeys, as assertions over an operation and its inputs.

An operation is called as `op(**inputs)`; `row_inputs` names those inputs whose first dimension is the rows. Results
may be a tensor or a tuple.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]
# Odd sizes in particular: the bad rows of an inexact operation sit in the tail.
ROW_COUNTS = (*range(1, 14), 17, 23, 31, 40)
ALL_ROWS = 41


def results(value: Any) -> list[Tensor]:
    """The tensors of a result."""
    return [value] if isinstance(value, Tensor) else [part for part in value if isinstance(part, Tensor)]


def rows_of(inputs: Inputs, row_inputs: Iterable[str], start: int, end: int) -> Inputs:
    """The same inputs for rows start .. end - 1."""

    def cut(value: Any) -> Any:
        if value is None or isinstance(value, Tensor):
            return None if value is None else value[start:end]
        return type(value)(*(part[start:end] for part in value))

    return {name: cut(value) if name in row_inputs else value for name, value in inputs.items()}


def rows_that_differ(op: Callable[..., Any], inputs: Inputs, row_inputs: Iterable[str]) -> list[tuple[int, int]]:
    """(start, count) of every part whose bits are not those of the whole."""
    whole = results(op(**inputs))
    found = []
    for count in ROW_COUNTS:
        start = (7 * count) % (ALL_ROWS - count + 1)
        part = results(op(**rows_of(inputs, row_inputs, start, start + count)))
        if not all(torch.equal(a, b[start : start + count]) for a, b in zip(part, whole, strict=True)):
            found.append((start, count))
    return found


def assert_rows_ignore_neighbours(op: Callable[..., Any], inputs: Inputs, row_inputs: Iterable[str]) -> None:
    """Parts of any size and place have the bits of the whole; `inputs` have 41 rows."""
    assert rows_that_differ(op, inputs, row_inputs) == []


def assert_gradients(op: Callable[..., Any], inputs: Inputs) -> None:
    """Analytic gradients of all float64 inputs are the numeric ones, and equal on a second run."""
    names = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()]
    leaves = [inputs[name].detach().clone().requires_grad_() for name in names]

    def call(*values: Tensor) -> tuple[Tensor, ...]:
        made = results(op(**(inputs | dict(zip(names, values, strict=True)))))
        return tuple(value for value in made if value.is_floating_point())

    torch.autograd.gradcheck(call, leaves, nondet_tol=0.0)


def float32(inputs: Inputs) -> Inputs:
    """float64 tensors as float32, also inside tuples."""

    def narrow(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.float() if value.dtype == torch.float64 else value
        return type(value)(*(narrow(part) for part in value)) if isinstance(value, tuple) else value

    return {name: narrow(value) for name, value in inputs.items()}


def assert_near_float64(op: Callable[..., Any], inputs: Inputs, tolerance: float) -> None:
    """float32 results, by every implementation, are near the float64 reference on the same values.

    `tolerance` is relative to the largest magnitude of the result's row (its last dimension).
    """
    exact = {name: value.double() if _is_float32(value) else value for name, value in float32(inputs).items()}
    expected = results(op(**exact, impl="reference"))
    for impl in ("auto", "reference"):
        for got, want in zip(results(op(**float32(inputs), impl=impl)), expected, strict=True):
            if not want.is_floating_point():
                assert torch.equal(got, want), impl
                continue
            scale = want.abs().amax(-1, keepdim=True).clamp(min=1e-30)
            error = (got.double() - want).abs() / scale
            worst = error.max().item() if error.numel() else 0.0
            assert worst <= tolerance, f"{impl}: {worst:.2e} > {tolerance:.2e} at {error.argmax().item()}"


def assert_gradients_of_kernel(op: Callable[..., Any], inputs: Inputs, tolerance: float = 1e-5) -> None:
    """float32 gradients through the CPU kernel are those of the float64 reference."""
    made = {}
    for impl, values in (("auto", float32(inputs)), ("reference", inputs)):
        leaves = {
            name: value.detach().clone().requires_grad_()
            for name, value in values.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        outputs = [out for out in results(op(**(values | leaves), impl=impl)) if out.is_floating_point()]
        torch.manual_seed(1)
        sum((out * torch.randn(out.shape, dtype=torch.float64)).sum() for out in outputs).backward()  # type: ignore[union-attr]
        made[impl] = {name: leaf.grad for name, leaf in leaves.items()}
    for name, want in made["reference"].items():
        got = made["auto"][name]
        assert want is not None, name
        assert got is not None, name
        assert (got.double() - want).abs().max() <= tolerance * want.abs().max().clamp(min=1e-6), name


def _is_float32(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float32
