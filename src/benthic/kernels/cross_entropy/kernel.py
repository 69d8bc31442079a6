"""Log-probabilities on CUDA: one launch, a program a row, which reads its logits twice.

The sum of exponentials is kept lane by lane and folded at the end, in blocks that the vocabulary's size alone decides:
PyTorch's own sum on a GPU follows the number of rows. The most likely tokens come lane by lane too: each lane knows its
best, and only the lane that gave the last one is read again.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.cross_entropy.reference import RankedLogprobs

_BLOCK, _WARPS = 8192, 16
_LOWEST = tl.constexpr(-(2**63))
_STAGES = tl.constexpr(4)
"""Blocks of logits on their way at once."""


@triton.jit
def _key(logit, token, size):
    """int64 that rises with the logit and, among equal logits, falls with the token; no two are equal."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)
    rank = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (rank.to(tl.int64) << 32) + (size - 1 - token).to(tl.int64)


@triton.jit
def _logprobs(
    logits, ids, out, best_ids, size, num_ids, row_step, id_step,
    num_top: tl.constexpr, block_ids: tl.constexpr, lines: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own, lane = logits + row * row_step, tl.arange(0, block)
    largest = tl.full((block,), float("-inf"), tl.float32)
    keys = tl.full((block,), _LOWEST, tl.int64)
    for start in tl.range(0, size, block, num_stages=_STAGES):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, logit)
        if num_top > 0:
            keys = tl.maximum(keys, tl.where(token < size, _key(logit, token, size), _LOWEST))
    top = tl.max(largest, 0)
    total = tl.zeros((block,), tl.float32)
    for start in tl.range(0, size, block, num_stages=_STAGES):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf")).to(tl.float32)
        total += tl.where(token < size, tl.exp(logit - top), 0.0)
    whole = top + tl.log(tl.sum(total, 0))
    number = tl.arange(0, block_ids)
    token = tl.load(ids + row * id_step + number, mask=number < num_ids, other=0)
    values = tl.load(own + token, mask=number < num_ids, other=0.0).to(tl.float32) - whole
    out += row * (num_ids + num_top)
    tl.store(out + number, values, mask=number < num_ids)
    for place in range(0, num_top):
        key = tl.max(keys, 0)
        likely = size - 1 - (key & 0xFFFFFFFF).to(tl.int32)
        tl.store(best_ids + row * num_top + place, likely.to(tl.int64))
        tl.store(out + num_ids + place, tl.load(own + likely).to(tl.float32) - whole)
        others = likely % block + tl.arange(0, lines) * block
        logit = tl.load(own + others, mask=others < size, other=float("-inf")).to(tl.float32)
        other_keys = tl.where(others < size, _key(logit, others, size), _LOWEST)
        left = tl.max(tl.where(other_keys < key, other_keys, _LOWEST), 0)
        keys = tl.where(lane == likely % block, left, keys)


def _launch(logits: Tensor, ids: Tensor, num_top: int, block: int) -> tuple[Tensor, Tensor]:
    """log p at `ids` [R, K] and then at the most likely, float32 [R, K + num_top]; ids of the latter."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    ids = ids if ids.stride(1) == 1 else ids.contiguous()
    (rows, size), num_ids = logits.shape, ids.shape[1]
    values = torch.empty((rows, num_ids + num_top), dtype=torch.float32, device=logits.device)
    best = torch.empty((rows, num_top), dtype=torch.int64, device=logits.device)
    if rows:
        _logprobs[(rows,)](
            logits, ids, values, best, size, num_ids, logits.stride(0), ids.stride(0), num_top,
            triton.next_power_of_2(max(num_ids, 1)), triton.next_power_of_2(triton.cdiv(size, block)), block,
            num_warps=_WARPS if block >= 1024 else 1,
        )  # fmt: skip
    return values, best


def ranked_logprobs_triton(logits: Tensor, chosen: Tensor, num_top: int, block: int = _BLOCK) -> RankedLogprobs:
    """See `ranked_logprobs`. `block` is for tests of small vocabularies."""
    values, best = _launch(logits, chosen[:, None], num_top, block)
    return RankedLogprobs(values[:, 0], best, values[:, 1:])


@torch.library.custom_op("benthic::token_logprobs", mutates_args=())
def token_logprobs_triton(logits: Tensor, ids: Tensor, block: int = _BLOCK) -> Tensor:
    """See `token_logprobs`; an operator with a gradient, which a compiled graph holds as it is."""
    values, _ = _launch(logits, ids.reshape(len(ids), -1), 0, block)
    return values.view(ids.shape)


@token_logprobs_triton.register_fake
def _(logits: Tensor, ids: Tensor, block: int = _BLOCK) -> Tensor:
    return logits.new_empty(ids.shape, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    logits, ids = ctx.saved_tensors
    each = grad.reshape(len(grad), -1)
    shares = logits.float().softmax(-1) * -each.sum(-1, keepdim=True)
    return shares.scatter_add_(1, ids.reshape(len(ids), -1), each).to(logits.dtype), None, None


token_logprobs_triton.register_autograd(_gradient, setup_context=_setup)
