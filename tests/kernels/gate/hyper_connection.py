"""Production shapes of the Sinkhorn iterations by Triton: four streams, 20 iterations, forward and back."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.hyper_connection.kernel import sinkhorn_backward_triton, sinkhorn_triton

EPS, ITERS = 1e-6, 20


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    logits = torch.empty(4096, 4, 4, device="meta")
    yield "balance", lambda: sinkhorn_triton(logits, EPS, ITERS)
    yield "balance backward", lambda: sinkhorn_backward_triton(logits, logits, EPS, ITERS)
