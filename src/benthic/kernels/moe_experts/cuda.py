"""The CUDA kernels' host side: four launches from FP8 rows to the sum over experts, and no word to the host."""

from ctypes import c_float, c_int, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.moe_experts.weights import Fp4Experts
from benthic.kernels.moe_route import ExpertRows
from benthic.kernels.quantize import QuantizedRows

PRODUCTS = CudaLibrary(Path(__file__).with_name("experts.cu"))
ROWS = CudaLibrary(Path(__file__).with_name("rows.cu"))
_P, _I = c_void_p, c_int


def routed_experts_cuda(
    x: QuantizedRows,
    routing: ExpertRows,
    w13: Fp4Experts,
    w2: Fp4Experts,
    limit: float,
    shared: Tensor | None,
    out_dtype: torch.dtype,
    group_rows: int | None = None,
) -> Tensor:
    """See `routed_experts`; both weights streamed. `group_rows` is for tests of its indifference."""
    return add_picks(picked_outputs(x, routing, w13, w2, limit, group_rows), routing.slots, shared, out_dtype)


def picked_outputs(
    x: QuantizedRows,
    routing: ExpertRows,
    w13: Fp4Experts,
    w2: Fp4Experts,
    limit: float,
    group_rows: int | None = None,
    alone: Tensor | None = None,
) -> Tensor:
    """bfloat16 [R * K, D]: the output of every pick, before they are added up. `alone`: see `alone_bytes`."""
    rows, top_k = routing.experts.shape
    experts, size, width = w2.shape
    group_rows = group_rows_of(rows, top_k, experts) if group_rows is None else group_rows
    blocked = gather(x, routing, group_rows) if alone is None else alone
    inner = blocked_rows(rows * top_k, experts, width, x.data.device)
    multiply_w13(blocked, routing, w13, limit, inner, group_rows, is_alone=alone is not None)
    outputs = x.data.new_empty((rows * top_k, size), dtype=torch.bfloat16)
    multiply_w2(inner, routing, w2, outputs, group_rows)
    return outputs


def group_rows_of(rows: int, top_k: int, experts: int) -> int:
    """Rows of an expert that are multiplied together at most: 32, 64 or 128. It settles the schedule, never a bit."""
    mean = rows * top_k / experts
    if rows <= 32 or mean <= 20:
        return 32
    return 64 if mean <= 56 else 128


def blocked_rows(picks: int, experts: int, size: int, device: torch.device) -> Tensor:
    """Room for `picks` rows of `size` values in blocked form, wherever they go; an expert starts at a multiple of 8."""
    return torch.empty((padded_rows(picks, experts), size + size // 32), dtype=torch.uint8, device=device)


def alone_bytes(size: int) -> int:
    """Of one row of `size` values in blocked form, wherever it goes: room for eight, of which the first is written."""
    return 8 * (size + size // 32)


def padded_rows(picks: int, experts: int) -> int:
    """A multiple of 8."""
    return (picks + 7 * experts) // 8 * 8


def gather(x: QuantizedRows, routing: ExpertRows, group_rows: int) -> Tensor:
    """The rows of every expert in blocked form."""
    picks, experts, size = routing.order.shape[0], routing.counts.shape[0], x.data.shape[1]
    blocked = blocked_rows(picks, experts, size, x.data.device)
    data, scale = x.data.contiguous(), x.scale.contiguous()
    launch = ROWS.function("experts_gather", [_P] * 5 + [_I] * 5 + [_P])
    launch(
        data.data_ptr(), scale.data_ptr(), routing.offsets.data_ptr(), routing.order.data_ptr(), blocked.data_ptr(),
        blocked.shape[0], experts, routing.experts.shape[1], size, group_rows, _stream(x.data),
    )  # fmt: skip
    return blocked


def multiply_w13(
    blocked: Tensor,
    routing: ExpertRows,
    w13: Fp4Experts,
    limit: float,
    inner: Tensor,
    group_rows: int,
    is_alone: bool = False,
) -> None:
    """The first product with all that follows it up to FP8 rows, into `inner`."""
    experts, outputs, inputs = w13.shape
    launch = PRODUCTS.function("experts_w13", [_P] * 7 + [_I] * 3 + [c_float] + [_I] * 4 + [_P])
    launch(
        w13.codes.data_ptr(), w13.scale.data_ptr(), blocked.data_ptr(), routing.offsets.data_ptr(),
        routing.order.data_ptr(), routing.weights.data_ptr(), inner.data_ptr(), experts, outputs, inputs, limit,
        is_alone, group_rows, w13.form == "block", num_processors(blocked.device), _stream(blocked),
    )  # fmt: skip


def multiply_w2(inner: Tensor, routing: ExpertRows, w2: Fp4Experts, outputs: Tensor, group_rows: int) -> None:
    """The second product: bfloat16 [R * K, D] in order of picks."""
    experts, size, width = w2.shape
    launch = PRODUCTS.function("experts_w2", [_P] * 6 + [_I] * 6 + [_P])
    launch(
        w2.codes.data_ptr(), w2.scale.data_ptr(), inner.data_ptr(), routing.offsets.data_ptr(),
        routing.order.data_ptr(), outputs.data_ptr(), experts, size, width, group_rows, w2.form == "block",
        num_processors(inner.device), _stream(inner),
    )  # fmt: skip


def add_picks(outputs: Tensor, slots: Tensor, shared: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    """The sum over each row's picks, in order, and `shared`; `slots` as in ExpertRows."""
    rows, top_k = slots.shape
    result = outputs.new_empty((rows, outputs.shape[1]), dtype=out_dtype)
    if shared is not None:
        shared = shared.contiguous() if shared.dtype == torch.bfloat16 else shared.float().contiguous()
    launch = ROWS.function("experts_sum", [_P, _P, _P, _I, _P] + [_I] * 4 + [_P])
    launch(
        outputs.data_ptr(), slots.data_ptr(), None if shared is None else shared.data_ptr(),
        shared is not None and shared.dtype == torch.bfloat16, result.data_ptr(), out_dtype == torch.bfloat16,
        rows, top_k, outputs.shape[1], _stream(outputs),
    )  # fmt: skip
    return result


@cache
def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors: the products' blocks, one each."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def _stream(x: Tensor) -> int:
    return torch.cuda.current_stream(x.device).cuda_stream
