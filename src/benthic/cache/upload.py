"""Index arrays on their way to the device: one copy a pass, without waiting for it."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]


def upload(arrays: Mapping[str, Ints], device: torch.device) -> dict[str, Tensor]:
    """int64 tensors of the same shapes on the device; on the CPU they share memory with the arrays."""
    if device.type == "cpu":
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return send(arrays, device)


def send(arrays: Mapping[str, Ints], device: torch.device) -> dict[str, Tensor]:
    """Copies of the arrays. They travel in one pinned buffer, whose memory torch keeps until the copy has run."""
    sizes = [array.size for array in arrays.values()]
    staged = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate([array.reshape(-1) for array in arrays.values()], out=staged.numpy())
    parts = staged.to(device, non_blocking=True).split(sizes)
    return {name: part.view(array.shape) for (name, array), part in zip(arrays.items(), parts, strict=True)}
