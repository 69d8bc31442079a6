"""Routing on CUDA in two launches: a program a row chooses and weighs, a program an expert lists its picks.

A row alone lists its picks itself.

Scores are made operation for operation as `cpu` makes them (no fused multiply-adds, true divisions), so the choice is
the CPU's to the bit. The lists are counted, not appended to: nothing depends on which program comes first.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.moe_route.reference import GroupLimit, Routing, Score
from benthic.kernels.moe_route.rows import ExpertRows

_SCORES: dict[Score, int] = {"sqrtsoftplus": 0, "sigmoid": 1, "softmax": 2}
_NO_LIMIT = GroupLimit(1, 1, 1)
_MOST_PICKS = 4096


@triton.jit
def _exp(x):
    """`numba_math.exp32`."""
    is_above_zero = x >= -87.0
    x = tl.minimum(tl.maximum(x, -87.0), 88.0)
    n = tl.floor(x * 1.44269504088896341 + 0.5)
    r = x - n * 0.693359375
    r = r - n * -2.12194440e-4
    p = tl.full(x.shape, 1.9875691500e-4, tl.float32)
    p = p * r + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    power = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return ((p * (r * r) + r) + 1.0) * tl.where(is_above_zero, power, 0.0)


@triton.jit
def _log1p_of_fraction(t):
    """`numba_math._log1p_of_fraction`."""
    total = 1.0 + t
    lost = tl.div_rn(t - (total - 1.0), total)
    is_upper = total > 1.41421356
    z = tl.where(is_upper, total * 0.5, total) - 1.0
    p = tl.full(t.shape, 7.0376836292e-2, tl.float32)
    p = p * z + -1.1514610310e-1
    p = p * z + 1.1676998740e-1
    p = p * z + -1.2420140846e-1
    p = p * z + 1.4249322787e-1
    p = p * z + -1.6668057665e-1
    p = p * z + 2.0000714765e-1
    p = p * z + -2.4999993993e-1
    p = p * z + 3.3333331174e-1
    square = z * z
    y = (square * z) * p - 0.5 * square
    low, high = tl.where(is_upper, -2.12194440e-4, 0.0), tl.where(is_upper, 0.693359375, 0.0)
    return ((y + low) + z + high) + lost


@triton.jit
def _unbounded_score(logits, is_sigmoid: tl.constexpr):
    x = tl.maximum(logits, -80.0)
    if is_sigmoid:
        return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), 1.0 + _exp(-x))
    return tl.sqrt_rn(tl.maximum(x, 0.0) + _log1p_of_fraction(_exp(-tl.abs(x))))


@triton.jit
def _score(logits, largest, total, score: tl.constexpr):
    """`largest` and `total` are those of the row, which softmax alone needs."""
    if score == 2:
        return tl.div_rn(_exp(logits - largest), tl.full(logits.shape, 1.0, tl.float32) * total)
    else:
        return _unbounded_score(logits, score == 1)


@triton.jit
def _halved_sum(x, size: tl.constexpr, steps: tl.constexpr):
    """x_i + x_(i + size/2), and so on: an order that no compiler can change."""
    for step in tl.static_range(steps):
        x = tl.sum(tl.reshape(x, (2, size >> (step + 1))), 0)
    return tl.sum(x, 0)


@triton.jit
def _first_largest(values, taken, index, beyond: tl.constexpr):
    """Index of the largest value that is not taken, the lowest of equals; values have two dims."""
    largest = tl.max(tl.max(tl.where(taken, float("-inf"), values), 1), 0)
    is_it = (values == largest) & ~taken
    return tl.min(tl.min(tl.where(is_it, index, beyond), 1), 0)


@triton.jit
def _within_best_groups(ranked, group, member, inside, kept: tl.constexpr, best: tl.constexpr, beyond: tl.constexpr):
    """`ranked` with -inf in all but the `kept` groups of the largest sums of `best`."""
    left, total = ranked, tl.zeros_like(tl.max(ranked, 1))
    for k in tl.static_range(best):
        largest = tl.max(left, 1)
        total = largest if k == 0 else total + largest
        first = tl.min(tl.where(left == largest[:, None], member, beyond), 1)
        left = tl.where(member == first[:, None], float("-inf"), left)
    totals = tl.where(inside, total[:, None], float("-inf"))
    is_kept = group < 0
    for _ in tl.static_range(kept):
        is_kept |= group == _first_largest(totals, is_kept | ~inside, group, beyond)
    return tl.where(is_kept, ranked, float("-inf"))


@triton.jit
def _list_row(
    chosen, rank, is_live, counts, offsets, order, slots,
    num_experts: tl.constexpr, top_k: tl.constexpr, block_e: tl.constexpr,
):  # fmt: skip
    """What `_list` writes, of the only row: its picks in order of experts."""
    is_pick = (rank < top_k) & is_live
    lower, same = chosen[None, :] < chosen[:, None], chosen[None, :] == chosen[:, None]
    before = (lower | (same & (rank[None, :] < rank[:, None]))) & (rank < top_k)[None, :]
    place = tl.sum(before.to(tl.int32), 1)
    tl.store(order + place, tl.where(is_pick, rank, -1), mask=rank < top_k)
    tl.store(slots + rank, tl.where(is_pick, place, -1), mask=rank < top_k)
    expert = tl.arange(0, block_e)
    own = (chosen[None, :] == expert[:, None]) & is_pick[None, :]
    first = (chosen[None, :] < expert[:, None]) & is_pick[None, :]
    tl.store(counts + expert, tl.sum(own.to(tl.int32), 1), mask=expert < num_experts)
    tl.store(offsets + expert, tl.sum(first.to(tl.int32), 1), mask=expert < num_experts)
    tl.store(offsets + num_experts, tl.sum(is_pick.to(tl.int32), 0))


@triton.jit
def _choose(
    logits, bias, given, token_ids, live, weights, experts, row_step, scale, floor,
    num_experts: tl.constexpr, top_k: tl.constexpr, score: tl.constexpr, has_bias: tl.constexpr,
    given_by: tl.constexpr, has_live: tl.constexpr, normalizes: tl.constexpr,
    groups: tl.constexpr, kept: tl.constexpr, best: tl.constexpr,
    block_g: tl.constexpr, block_m: tl.constexpr, block_e: tl.constexpr, steps: tl.constexpr, block_k: tl.constexpr,
    counts=None, offsets=None, order=None, slots=None,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * row_step
    size: tl.constexpr = num_experts // groups
    beyond: tl.constexpr = num_experts - 1  # where nothing compares, as beside NaN, an expert that exists
    largest, total_score = 0.0, 1.0
    if score == 2:
        flat = tl.arange(0, block_e)
        values = tl.load(own + flat, mask=flat < num_experts, other=float("-inf"))
        largest = tl.max(values, 0)
        total_score = _halved_sum(tl.where(flat < num_experts, _exp(values - largest), 0.0), block_e, steps)
    rank = tl.arange(0, block_k)
    if given_by == 0:
        group, member = tl.arange(0, block_g)[:, None], tl.arange(0, block_m)[None, :]
        inside = (group < groups) & (member < size)
        index = group * size + member
        values = tl.load(own + index, mask=inside, other=float("-inf"))
        scores = _score(values, largest, total_score, score)
        ranked = scores
        if has_bias:
            ranked = scores + tl.load(bias + index, mask=inside, other=0.0)
        ranked = tl.where(inside, ranked, float("-inf"))
        if kept < groups:
            ranked = _within_best_groups(ranked, group, member, inside, kept, best, num_experts)
        taken = ~inside
        chosen, picked = tl.zeros((block_k,), tl.int32), tl.zeros((block_k,), tl.float32)
        for k in tl.static_range(top_k):
            expert = _first_largest(ranked, taken, index, beyond)
            is_it = index == expert
            taken |= is_it
            value = tl.sum(tl.sum(tl.where(is_it & inside, scores, 0.0), 1), 0)
            chosen = tl.where(rank == k, expert, chosen)
            picked = tl.where(rank == k, value, picked)
    else:
        line = row if given_by == 1 else tl.load(token_ids + row).to(tl.int64)
        chosen = tl.load(given + line * top_k + rank, mask=rank < top_k, other=0).to(tl.int32)
        values = tl.load(own + chosen, mask=rank < top_k, other=0.0)
        picked = _score(values, largest, total_score, score)
    if normalizes:
        total = 0.0
        for k in tl.static_range(top_k):
            total += tl.sum(tl.where(rank == k, picked, 0.0), 0)
        picked = tl.div_rn(picked, tl.full(picked.shape, 1.0, tl.float32) * (total + floor))
    picked = picked * scale
    if has_live:
        picked = tl.where(row < tl.load(live), picked, 0.0)
    tl.store(weights + row * top_k + rank, picked, mask=rank < top_k)
    tl.store(experts + row * top_k + rank, chosen.to(experts.dtype.element_ty), mask=rank < top_k)
    if counts is not None:
        is_live = row < tl.load(live) if has_live else True
        _list_row(chosen, rank, is_live, counts, offsets, order, slots, num_experts, top_k, block_e)


@triton.jit
def _list(
    experts, live, counts, offsets, order, slots, num_picks, top_k, num_experts,
    has_live: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0)
    num_live = num_picks
    if has_live:
        num_live = tl.minimum(tl.load(live).to(tl.int32) * top_k, num_picks)
    place = tl.arange(0, block)
    before, own = tl.zeros((block,), tl.int32), tl.zeros((block,), tl.int32)
    for start in range(0, num_live, block):
        pick = start + place
        chosen = tl.load(experts + pick, mask=pick < num_live, other=num_experts)
        before += (chosen < expert).to(tl.int32)
        own += (chosen == expert).to(tl.int32)
    first, count = tl.sum(before, 0), tl.sum(own, 0)
    tl.store(counts + expert, count)
    tl.store(offsets + expert, first)
    if expert == num_experts - 1:
        tl.store(offsets + num_experts, first + count)
    for start in range(0, num_live, block):
        pick = start + place
        is_own = tl.load(experts + pick, mask=pick < num_live, other=num_experts) == expert
        slot = first + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(order + slot, pick, mask=is_own)
        tl.store(slots + pick, slot, mask=is_own)
        first += tl.sum(is_own.to(tl.int32), 0)
    if has_live:
        for start in range(num_live + expert * block, num_picks, block * num_experts):
            pick = start + place
            tl.store(order + pick, -1, mask=pick < num_picks)
            tl.store(slots + pick, -1, mask=pick < num_picks)


def _choose_rows(
    logits: Tensor, bias: Tensor | None, given: Tensor | None, token_ids: Tensor | None, num_rows: Tensor | None,
    experts: Tensor, scale: float, score: Score, normalize: bool, floor: float, limit: GroupLimit | None,
    lists: tuple[Tensor, ...] = (),
) -> Tensor:  # fmt: skip
    """Writes the chosen experts [R, K] and returns their weights; `given` is [R, K], or [V, K] with token ids.

    `lists`: counts, offsets, order and slots, written too; of one row only.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    (rows, num_experts), top_k = logits.shape, experts.shape[1]
    weights = torch.empty((rows, top_k), dtype=torch.float32, device=logits.device)
    if not rows:
        return weights
    bound = limit or _NO_LIMIT
    block_e = triton.next_power_of_2(num_experts)
    unused = weights
    _choose[(rows,)](
        logits,
        unused if bias is None else bias.to(torch.float32).contiguous(),
        unused if given is None else given.contiguous(),
        unused if token_ids is None else token_ids.contiguous(),
        unused if num_rows is None else num_rows,
        weights, experts, logits.stride(0), scale, floor if normalize else 0.0,
        num_experts, top_k, _SCORES[score], bias is not None, 0 if given is None else 1 if token_ids is None else 2,
        num_rows is not None, normalize, bound.groups, bound.kept, bound.best,
        triton.next_power_of_2(bound.groups), triton.next_power_of_2(num_experts // bound.groups),
        block_e, block_e.bit_length() - 1, triton.next_power_of_2(top_k), *lists,
        num_warps=1 if block_e <= 256 else 2, enable_fp_fusion=False,
    )  # fmt: skip
    return weights


def moe_route_triton(
    logits: Tensor, bias: Tensor | None, experts: Tensor | None, top_k: int, scale: float, score: Score,
    normalize: bool, floor: float, limit: GroupLimit | None,
) -> Routing:  # fmt: skip
    """See `moe_route`."""
    chosen = torch.empty((len(logits), top_k), dtype=torch.int64, device=logits.device)
    weights = _choose_rows(logits, bias, experts, None, None, chosen, scale, score, normalize, floor, limit)
    return Routing(weights, chosen)


def route_rows_triton(
    logits: Tensor, bias: Tensor | None, experts: Tensor | None, table: Tensor | None, token_ids: Tensor | None,
    num_rows: Tensor | None, top_k: int, scale: float, score: Score, normalize: bool, floor: float,
    limit: GroupLimit | None,
) -> ExpertRows:  # fmt: skip
    """See `route_rows`."""
    (rows, num_experts), on = logits.shape, logits.device
    chosen = torch.empty((rows, top_k), dtype=torch.int32, device=on)
    given = experts if table is None else table
    picks = rows * top_k
    numbers = torch.empty(2 * num_experts + 1 + 2 * picks, dtype=torch.int32, device=on)
    counts, offsets, order, slots = numbers.split([num_experts, num_experts + 1, picks, picks])
    lists = (counts, offsets, order, slots) if rows == 1 else ()
    weights = _choose_rows(
        logits, bias, given, token_ids, num_rows, chosen, scale, score, normalize, floor, limit, lists
    )
    if lists:
        return ExpertRows(chosen, weights, counts, offsets, order, slots.view(rows, top_k))
    block = min(_MOST_PICKS, max(triton.next_power_of_2(picks), 128))
    _list[(num_experts,)](
        chosen, weights if num_rows is None else num_rows, counts, offsets, order, slots, picks, top_k, num_experts,
        num_rows is not None, block, num_warps=4 if block <= 1024 else 8,
    )  # fmt: skip
    return ExpertRows(chosen, weights, counts, offsets, order, slots.view(rows, top_k))
