"""Small results on their way from the device to the host, without stopping either."""

from collections.abc import Sequence

import torch
from torch import Tensor


class HostCopy:
    """Copies of tensors that are started now and waited for later.

    On CUDA they go into pinned memory behind the work queued so far; `wait` blocks for that work alone, not for what
    is queued afterwards. On the CPU nothing is copied.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if not any(tensor.is_cuda for tensor in tensors):
            self._tensors = tuple(tensors)
            return
        self._tensors = tuple(_pinned(tensor) for tensor in tensors)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> tuple[Tensor, ...]:
        """The tensors on the CPU, in their order."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return self._tensors


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on `device`, without waiting for the work that is queued there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _pinned(tensor: Tensor) -> Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
