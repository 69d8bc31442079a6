"""The door of rope: frequencies (plain or YaRN), tables for positions, and the rotation."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.inputs import require_choice, require_floats
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.rope.reference import apply_rope_halves_ref, apply_rope_ref

Pairing = Literal["interleaved", "halves"]
"""Which dims turn together: neighbours in the last r dims, or i and i + r/2 in the first r."""


class YarnScaling(Protocol):
    """What `rope_frequencies` reads of a YaRN configuration."""

    @property
    def factor(self) -> float: ...
    @property
    def original_max_position_embeddings(self) -> int: ...
    @property
    def beta_fast(self) -> float: ...
    @property
    def beta_slow(self) -> float: ...


class RopeTable(NamedTuple):
    """Rotations of R rows: `cos` and `sin`, float32 [R, r/2], times the amplitude that they were made with."""

    cos: Tensor
    sin: Tensor


def rope_frequencies(dim: int, theta: float, yarn: YarnScaling | None) -> Tensor:
    """Angle per position of each rotating pair.

    f_i = theta^(-2i/dim). YaRN divides the low frequencies by its factor: with c(b) = dim ln(L / (2 pi b)) /
    (2 ln theta), pairs up to floor c(beta_fast) stay, pairs from ceil c(beta_slow) are divided, linear between.

    Args:
        dim: the rotary dims, r.
        theta: the base.
        yarn: None for plain rope, as layers of ratio 0 have it.

    Returns:
        float32 [dim/2] on the CPU.

    Source: model.md 2.3.
    """
    frequencies = theta ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if yarn is None:
        return frequencies
    low = max(math.floor(_yarn_pair(yarn.beta_fast, dim, theta, yarn.original_max_position_embeddings)), 0)
    high: float = min(math.ceil(_yarn_pair(yarn.beta_slow, dim, theta, yarn.original_max_position_embeddings)), dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return frequencies * (1 - ramp) + frequencies / yarn.factor * ramp


def _yarn_pair(rotations: float, dim: int, theta: float, original_len: int) -> float:
    """The (fractional) pair that turns `rotations` times over the original context."""
    return dim * math.log(original_len / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def rope_table(positions: Tensor, frequencies: Tensor, amplitude: float = 1.0) -> RopeTable:
    """Cosines and sines of position times frequency.

    Args:
        positions: int64 [R].
        frequencies: float32 [r/2].
        amplitude: both are multiplied by it (YaRN's mscale; 1 in every released model).

    Returns:
        float32 [R, r/2] each, on the device of `positions`.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies.to(positions.device)
    if amplitude == 1.0:
        return RopeTable(angles.cos(), angles.sin())
    return RopeTable(angles.cos() * amplitude, angles.sin() * amplitude)


def apply_rope(
    x: Tensor, table: RopeTable, inverse: bool = False, pairing: Pairing = "interleaved", *, impl: Impl = "auto"
) -> Tensor:
    """Rotates r dims of each vector by its row's angles; the others pass unchanged.

    Args:
        x: [R, d] or [R, H, d], any float dtype.
        table: rotations of the R rows; r <= d.
        inverse: turn back by the same angles.
        pairing: "interleaved" turns pairs of neighbours in the last r dims, "halves" i with i + r/2 in the first r.

    Returns:
        Like `x`; the rotation in float32, cast once.

    Raises:
        KernelInputError: the shapes do not fit.

    Source: model.md 2.3; family.md 5 for "halves". The same row has the same bits in any batch.
    """
    sizes = table.cos.shape
    if (
        x.dim() not in (2, 3)
        or len(sizes) != 2
        or table.sin.shape != sizes
        or x.shape[0] != sizes[0]
        or 2 * sizes[1] > x.shape[-1]
    ):
        raise KernelInputError(
            f"x has shape {tuple(x.shape)} and the table {tuple(sizes)} and {tuple(table.sin.shape)}; "
            "they must be [R, d] or [R, H, d] and [R, r/2] with r <= d"
        )
    require_floats(x=x)
    require_choice("pairing", pairing, Pairing)
    reference = apply_rope_ref if pairing == "interleaved" else apply_rope_halves_ref
    if uses_triton_kernel(impl, x):
        return with_reference_gradient(_triton(pairing), reference, (x, table.cos, table.sin), inverse)
    if not uses_cpu_kernel(impl, x):
        return reference(x, table.cos, table.sin, inverse)
    return with_reference_gradient(_cpu(pairing), reference, (x, table.cos, table.sin), inverse)


@cache
def _triton(pairing: Pairing) -> Callable[..., Any]:
    from benthic.kernels.rope.kernel import apply_rope_halves_triton, apply_rope_triton

    return apply_rope_triton if pairing == "interleaved" else apply_rope_halves_triton


@cache
def _cpu(pairing: Pairing) -> Callable[..., Any]:
    from benthic.kernels.rope.cpu import apply_rope_cpu, apply_rope_halves_cpu

    return apply_rope_cpu if pairing == "interleaved" else apply_rope_halves_cpu
