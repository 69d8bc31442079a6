"""The doors of key storage in the official formats.

Lossless on what the `quantized` policy computes: V4's kv rows that went through FP8 in groups of 64 and its indexer
keys that went through FP4 in groups of 32, and either of V3.2 that went through FP8 in groups of 128, come back bit for
bit; scales are powers of two everywhere. A group with a value that is not finite comes back as NaN.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, KeyForm, index_bytes, kv_bytes
from benthic.kernels.kv_storage.reference import pack_index_ref, pack_kv_ref, unpack_index_ref, unpack_kv_ref

WIDE = (torch.float32, torch.bfloat16)
"""Dtypes of rows whose exponents hold every code times every scale."""


def pack_kv(rows: Tensor, rope_dim: int, form: KeyForm = "v4", *, impl: Impl = "auto") -> Tensor:
    """kv rows [n, d] (float32 or bfloat16, the last `rope_dim` rotated) to uint8 [n, kv_bytes(d, rope_dim, dtype)].

    Values that FP8 does not hold are rounded as `round_trip_fp8` does in groups of 64 (V4) or 128 (V3.2).
    """
    _check_form(form)
    _check_rows(rows)
    if not 0 <= rope_dim < rows.shape[-1]:
        raise KernelInputError(f"rope_dim ({rope_dim}) must be at least 0 and below the row's width {rows.shape[-1]}")
    return _implementation("pack_kv", impl, rows)(rows, rope_dim, form)


def unpack_kv(
    data: Tensor, dim: int, rope_dim: int, dtype: torch.dtype, form: KeyForm = "v4", *, impl: Impl = "auto"
) -> Tensor:
    """The rows [n, dim] in `dtype` of uint8 [n, kv_bytes(dim, rope_dim, dtype, form)]."""
    _check_form(form)
    _check_bytes(data, kv_bytes(dim, rope_dim, dtype, form))
    return _implementation("unpack_kv", impl, data)(data, dim, rope_dim, dtype, form)


def pack_index(rows: Tensor, form: KeyForm = "v4", *, impl: Impl = "auto") -> Tensor:
    """Indexer keys [n, di] (float32 or bfloat16, di even in V4's format) to uint8 [n, index_bytes(di, form)].

    Values that the format does not hold are rounded as `round_trip_fp4` does in groups of 32 (V4), or as
    `round_trip_fp8` does in groups of 128 (V3.2).
    """
    _check_form(form)
    _check_rows(rows)
    if form == "v4" and rows.shape[-1] % 2:
        raise KernelInputError(f"indexer keys are {rows.shape[-1]} wide; two share a byte, so it must be even")
    return _implementation("pack_index", impl, rows)(rows, form)


def unpack_index(data: Tensor, dim: int, dtype: torch.dtype, form: KeyForm = "v4", *, impl: Impl = "auto") -> Tensor:
    """The keys [n, dim] in `dtype` of uint8 [n, index_bytes(dim, form)]."""
    _check_form(form)
    _check_bytes(data, index_bytes(dim, form))
    return _implementation("unpack_index", impl, data)(data, dim, dtype, form)


def _check_form(form: KeyForm) -> None:
    if form not in FP8_LAYOUTS:
        raise KernelInputError(f"form {form!r} is unknown; it is one of 'v4', 'v3.2'")


def _check_rows(rows: Tensor) -> None:
    if rows.dtype not in WIDE or rows.dim() != 2:
        raise KernelInputError(
            f"rows are {rows.dtype} of shape {tuple(rows.shape)}; they must be float32 or bfloat16 of shape [n, d]"
        )


def _check_bytes(data: Tensor, width: int) -> None:
    if data.dtype is not torch.uint8 or data.shape[-1] != width:
        raise KernelInputError(
            f"packed rows are {data.dtype} of width {data.shape[-1]}; they must be uint8 of width {width}"
        )


def _implementation(name: str, impl: Impl, x: Tensor) -> Callable[..., Tensor]:
    references: dict[str, Callable[..., Tensor]] = {
        "pack_kv": pack_kv_ref,
        "unpack_kv": unpack_kv_ref,
        "pack_index": pack_index_ref,
        "unpack_index": unpack_index_ref,
    }
    return _compiled()[name] if uses_cpu_kernel(impl, x) else references[name]


@cache
def _compiled() -> dict[str, Callable[..., Tensor]]:
    from benthic.kernels.kv_storage import cpu

    return {
        "pack_kv": cpu.pack_kv_cpu,
        "unpack_kv": cpu.unpack_kv_cpu,
        "pack_index": cpu.pack_index_cpu,
        "unpack_index": cpu.unpack_index_cpu,
    }
