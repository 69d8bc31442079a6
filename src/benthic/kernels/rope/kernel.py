"""The rotation on CUDA: one launch, a program a few vectors of one row.

Each result is one fused multiply-add beside a product, as kernels that hold a vector write it too
(`entry_write.row_parts.turned`), so their bits are these.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_VALUES_AT_ONCE = 4096


@triton.jit
def _rope(
    x, cos, sin, y, heads, row_step, head_step,
    dim: tl.constexpr, rope_dim: tl.constexpr, halves: tl.constexpr, inverse: tl.constexpr,
    width: tl.constexpr, vectors: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * vectors + tl.arange(0, vectors)
    pair = tl.arange(0, width)
    pairs: tl.constexpr = rope_dim // 2
    still: tl.constexpr = dim - rope_dim
    is_pair = pair < pairs
    inside = (head < heads)[:, None]
    c = tl.load(cos + row * pairs + pair, mask=is_pair, other=1.0)
    s = tl.load(sin + row * pairs + pair, mask=is_pair, other=0.0)
    if inverse:
        s = -s
    first = pair if halves else still + 2 * pair
    second = pair + pairs if halves else still + 2 * pair + 1
    source = x + row * row_step + head[:, None] * head_step
    target = y + (row * heads + head)[:, None] * dim
    mask = inside & is_pair[None, :]
    a = tl.load(source + first[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(source + second[None, :], mask=mask, other=0.0).to(tl.float32)
    c, s = tl.broadcast_to(c[None, :], a.shape), tl.broadcast_to(s[None, :], a.shape)
    tl.store(target + first[None, :], tl.fma(a, c, -(b * s)).to(y.dtype.element_ty), mask=mask)
    tl.store(target + second[None, :], tl.fma(a, s, b * c).to(y.dtype.element_ty), mask=mask)
    for start in range(0, still, width):
        place = (rope_dim if halves else 0) + start + pair
        kept = inside & (start + pair < still)[None, :]
        tl.store(target + place[None, :], tl.load(source + place[None, :], mask=kept), mask=kept)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool, halves: bool) -> Tensor:
    rows, dim = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    x = x if x.stride(-1) == 1 else x.contiguous()
    width = max(16, triton.next_power_of_2(cos.shape[1]))
    vectors = max(1, min(_VALUES_AT_ONCE // dim, triton.next_power_of_2(heads)))
    vectors = triton.next_power_of_2(vectors + 1) // 2
    _rope[(rows, triton.cdiv(heads, vectors))](
        x, cos.contiguous(), sin.contiguous(), y, heads, x.stride(0), x.stride(1) if x.dim() == 3 else 0,
        dim, 2 * cos.shape[1], halves, inverse, width, vectors, num_warps=4,
    )  # fmt: skip
    return y


def apply_rope_triton(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """See `apply_rope`, pairs of neighbours."""
    return _turn(x, cos, sin, inverse, False)


def apply_rope_halves_triton(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """See `apply_rope`, pairs of halves."""
    return _turn(x, cos, sin, inverse, True)
