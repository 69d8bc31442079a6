"""Blocks of a tensor that share one scale: rectangles over the last two dimensions, the last ones possibly ragged.

A block is (rows, columns): (128, 128) for FP8 weights, (1, 128) and (1, 64) for activations, (1, 32) for FP4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError

Block = tuple[int, int]


def scale_shape(shape: torch.Size, block: Block) -> tuple[int, ...]:
    """Shape of the scales of a tensor of that shape: the last two dimensions counted in blocks, rounded up."""
    rows, columns = block
    if rows == 1:
        return (*shape[:-1], -(-shape[-1] // columns))
    return (*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns))


def check_block(x: Tensor, block: Block) -> None:
    """Raises KernelInputError unless `x` has the dimensions that the block covers."""
    rows, columns = block
    if rows < 1 or columns < 1:
        raise KernelInputError(f"block {block} must have positive sides, for example (128, 128) or (1, 128)")
    if x.ndim < (1 if rows == 1 else 2):
        raise KernelInputError(f"a tensor of shape {tuple(x.shape)} has too few dimensions for blocks of {block}")


def check_scale(x: Tensor, scale: Tensor, block: Block) -> None:
    """Raises KernelInputError unless `scale` has one value for each block of `x`."""
    check_block(x, block)
    expected = scale_shape(x.shape, block)
    if tuple(scale.shape) != expected:
        raise KernelInputError(
            f"scale of shape {tuple(scale.shape)} does not fit a tensor of shape {tuple(x.shape)} "
            f"in blocks of {block}; it must be {expected}"
        )


def block_amax(x: Tensor, block: Block) -> Tensor:
    """Largest magnitude in each block, float32, of shape `scale_shape(x.shape, block)`; NaN where a block holds NaN."""
    rows, columns = block
    magnitude = x.detach().abs().float()
    padding = [0, -x.shape[-1] % columns] + ([0, -x.shape[-2] % rows] if rows > 1 else [])
    if any(padding):
        magnitude = F.pad(magnitude, padding)
    magnitude = magnitude.unflatten(-1, (-1, columns)).amax(-1) if x.numel() else magnitude.new_zeros(0)
    if x.numel() and rows > 1:
        magnitude = magnitude.unflatten(-2, (-1, rows)).amax(-2)
    return magnitude.reshape(scale_shape(x.shape, block))


def spread(scale: Tensor, shape: torch.Size, block: Block) -> Tensor:
    """Repeats each block's scale over its block: scale -> a tensor of `shape`."""
    rows, columns = block
    wide = scale.repeat_interleave(columns, dim=-1)[..., : shape[-1]]
    if rows == 1:
        return wide
    return wide.repeat_interleave(rows, dim=-2)[..., : shape[-2], :]
