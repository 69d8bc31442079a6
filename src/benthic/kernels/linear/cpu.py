"""Products of few rows on the CPU, in the order in which libraries add when there are many rows.

A blocked product adds each output's terms in order of the input index, one fused multiply-add after the other. This
does the same, vectorised over outputs, so its bits are those of a large library product (checked, see `layout`), and
one row costs no more than reading the weight.
"""

from typing import Any

import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, inlined, int32s, kernel, part
from benthic.kernels.numba_math import fma32

# Outputs whose sums stay in the first cache while the inputs go by: whole rows, so that the weight is read in order.
OUTPUT_BLOCK = 4096


def few_rows_linear(x: Tensor, weight: Tensor) -> Tensor:
    """y = x W^T; x float32 [R, I] with unit column stride, weight float32 [O, I] laid out by columns."""
    rows, inputs = x.shape
    outputs = weight.shape[0]
    result = torch.empty((rows, outputs), dtype=torch.float32)
    if rows:
        _few_rows(x.data_ptr(), weight.data_ptr(), result.data_ptr(), rows, inputs, outputs, x.stride(0))
    return result


def few_rows_grouped(x: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    """Rows of expert e times W_e^T; x float32 [N, I], weight float32 [E, O, I] by columns, group_ends int32 [E]."""
    experts, outputs, inputs = weight.shape
    result = torch.empty((x.shape[0], outputs), dtype=torch.float32)
    _few_rows_grouped(
        x.data_ptr(),
        weight.data_ptr(),
        group_ends.data_ptr(),
        result.data_ptr(),
        experts,
        inputs,
        outputs,
        x.stride(0),
    )
    return result


def one_row_in_segments(x: Tensor, weight: Tensor, num_segments: int) -> Tensor:
    """Partial products of one row; x float32 [1, S * I], weight float32 [O, S * I] by columns. Returns [S, 1, O]."""
    outputs, inputs = weight.shape[0], weight.shape[1] // num_segments
    result = torch.empty((num_segments, 1, outputs), dtype=torch.float32)
    _one_row_in_segments(x.data_ptr(), weight.data_ptr(), result.data_ptr(), num_segments, inputs, outputs)
    return result


@kernel
def _one_row_in_segments(x_at: int, weight_at: int, y_at: int, segments: int, inputs: int, outputs: int) -> None:
    weight, y = float32s(weight_at, (segments, inputs, outputs)), float32s(y_at, (segments, 1, outputs))
    for segment in range(segments):
        _multiply(x_at + 4 * segment * inputs, weight[segment], y[segment], inputs)


@kernel
def _few_rows(x_at: int, weight_at: int, y_at: int, rows: int, inputs: int, outputs: int, row_stride: int) -> None:
    _multiply(x_at, float32s(weight_at, (inputs, outputs)), float32s(y_at, (rows, outputs)), row_stride)


@kernel
def _few_rows_grouped(
    x_at: int, weight_at: int, ends_at: int, y_at: int, experts: int, inputs: int, outputs: int, row_stride: int
) -> None:
    ends = int32s(ends_at, (experts,))
    start = 0
    for expert in range(experts):
        rows = ends[expert] - start
        if rows > 0:
            weight = float32s(weight_at + 4 * expert * inputs * outputs, (inputs, outputs))
            y = float32s(y_at + 4 * start * outputs, (rows, outputs))
            _multiply(x_at + 4 * start * row_stride, weight, y, row_stride)
            start = ends[expert]


@part
def _multiply(x_at: int, weight: Any, y: Any, row_stride: int) -> None:
    """y[r, o] = sum_i x[r, i] weight[i, o], i ascending; four inputs at a time for fewer loads of the sums.

    Each slice is of one row, so that its values are known to be adjacent: else nothing would be vectorised.
    """
    inputs, rows = weight.shape[0], y.shape[0]
    whole = inputs // 4 * 4
    for first in range(0, weight.shape[1], OUTPUT_BLOCK):
        last = min(first + OUTPUT_BLOCK, weight.shape[1])
        for row in range(rows):
            y[row, first:last] = 0
        for i in range(0, whole, 4):
            w0, w1 = weight[i, first:last], weight[i + 1, first:last]
            w2, w3 = weight[i + 2, first:last], weight[i + 3, first:last]
            for row in range(rows):
                x = float32s(x_at + 4 * (row * row_stride + i), (4,))
                _add_four(x, w0, w1, w2, w3, y[row, first:last])
        for i in range(whole, inputs):
            w0 = weight[i, first:last]
            for row in range(rows):
                x = float32s(x_at + 4 * (row * row_stride + i), (1,))
                total = y[row, first:last]
                for o in range(total.size):
                    total[o] = fma32(x[0], w0[o], total[o])


@inlined
def _add_four(x: Any, w0: Any, w1: Any, w2: Any, w3: Any, total: Any) -> None:
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    for o in range(total.size):
        total[o] = fma32(x3, w3[o], fma32(x2, w2[o], fma32(x1, w1[o], fma32(x0, w0[o], total[o]))))
