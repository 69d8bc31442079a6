"""Weights laid out by columns: the layout in which a product of one row is cheap and exact.

A weight [O, I] is by columns if memory holds it as [I, O]. Then the library's products have the same bits for every
number of rows from 2 on, and `cpu.few_rows_linear` gives these bits for one row. Both are facts about a library on a
processor, so they are checked for each shape before a weight is laid out so; a weight that fails stays as it is,
and `linear` pads its few rows instead.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Enough outputs and rows to meet every kernel that the library chooses among.
CHECKED_OUTPUTS = 1024
CHECKED_ROWS = (*range(1, 18), 23, 32, 33, 64, 129)
MOST_ROWS = 200


def by_columns(weight: Tensor, num_segments: int = 1) -> Tensor:
    """The same values in [..., I, O] order if products with them are exact on this machine, else `weight` itself.

    Args:
        weight: [O, I], or [E, O, I] for groups. Only float32 on the CPU is laid out anew.
        num_segments: the product is formed in so many equal segments of the input, added in order (`hyper_pre`: one
            a stream).

    Returns:
        Same shape and values; detached.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or weight.numel() == 0:
        return weight.detach()
    outputs, inputs = weight.shape[-2:]
    if not products_agree(min(outputs, CHECKED_OUTPUTS), inputs // num_segments, torch.get_num_threads()):
        return weight.detach()
    return weight.detach().transpose(-1, -2).contiguous().transpose(-1, -2)


def is_by_columns(weight: Tensor) -> bool:
    """True if memory holds float32 [O, I] or [E, O, I] as [..., I, O] without gaps, on the CPU."""
    strides = weight.stride()
    if strides[-2] != 1 or not weight.is_cpu or weight.dtype is not torch.float32:
        return False
    shape = weight.shape
    is_dense = strides[-1] == shape[-2] and (len(shape) == 2 or strides[0] == shape[-1] * shape[-2])
    # A row-major weight of one input has these strides too.
    return is_dense and shape[-1] > 1


@cache
def products_agree(outputs: int, inputs: int, threads: int) -> bool:
    """True if a row has the same bits in products of any number of rows with a weight by columns.

    `threads` keys the cache: the library may divide its work otherwise.
    """
    from benthic.kernels.linear.cpu import few_rows_grouped, few_rows_linear

    generator = torch.Generator().manual_seed(outputs * 7919 + inputs)
    x = torch.randn(MOST_ROWS, inputs, generator=generator)
    weight = torch.randn(inputs, outputs, generator=generator).t()
    pair, whole = torch.stack((weight.t(), weight.t())).transpose(1, 2), F.linear(x, weight)
    for rows in CHECKED_ROWS:
        start = (5 * rows) % (MOST_ROWS - rows)
        part, right = x[start : start + rows], whole[start : start + rows]
        ends = torch.tensor([0, rows], dtype=torch.int32)
        products = [few_rows_linear(part, weight), few_rows_grouped(part, pair, ends)]
        if rows > 1:
            products.append(F.linear(part, weight))
            products.append(torch.bmm(torch.stack((part, part)), pair.transpose(1, 2))[1])
        if not all(torch.equal(product, right) for product in products):
            return False
    return True
