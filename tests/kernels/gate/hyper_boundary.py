"""Production shapes of the boundary by Triton: Flash and Pro, few rows and many, first and between; the exit."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.hyper_boundary.kernel import FEW_ROWS, hyper_boundary_triton, hyper_exit_triton

SIZES = {"flash": 4096, "pro": 7168}


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for model, size in SIZES.items():
        for name, rows in (("few", 4), ("many", FEW_ROWS + 1)):
            yield f"{model} {name} between", lambda size=size, rows=rows: _boundary(rows, size, closes=True)
            yield f"{model} {name} first", lambda size=size, rows=rows: _boundary(rows, size, closes=False)
            yield f"{model} {name} exit", lambda size=size, rows=rows: _exit(rows, size)


def _boundary(rows: int, size: int, *, closes: bool) -> object:
    return hyper_boundary_triton(*_closing(rows, size, closes), *_weights(24, 3, size), 1e-6, 20, 1e-6, True)


def _exit(rows: int, size: int) -> object:
    return hyper_exit_triton(*_closing(rows, size, True), *_weights(4, 1, size), 1e-6, 1e-6)


def _closing(rows: int, size: int, closes: bool) -> tuple[torch.Tensor | None, ...]:
    output = torch.empty(rows, size, dtype=torch.float32, device="meta")
    addend = torch.empty(rows, size, dtype=torch.bfloat16, device="meta")
    streams = torch.empty(rows, 4, size, dtype=torch.bfloat16, device="meta")
    if not closes:
        return None, None, streams, None, None
    post, comb = torch.empty(rows, 4, device="meta"), torch.empty(rows, 4, 4, device="meta")
    return output, addend, streams, post, comb


def _weights(outputs: int, scales: int, size: int) -> tuple[torch.Tensor, ...]:
    shapes = ((outputs, 4 * size), (scales,), (outputs,), (size,))
    return tuple(torch.empty(*shape, device="meta") for shape in shapes)
