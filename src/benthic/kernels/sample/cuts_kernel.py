"""Top-k, top-p and min-p in the sampling kernels, without sorting a row.

A histogram of logits says how far below the best what may be kept can lie. Tokens above that are listed, and their
keys compared with one another; where they are too many, the key of the last kept one is bisected.
"""

import triton
import triton.language as tl

from benthic.kernels.sample.parts import (
    BINS,
    BINS_A_UNIT,
    HIGHEST,
    LOWEST,
    ONE,
    bin_of,
    kept_weight,
    key_of,
    logit_of,
    pick,
    threshold_of,
    weight_of,
)

_COMPARED = tl.constexpr(8)
"""Keys that all others are compared with at once."""


@triton.jit
def _limit_of(top_k, size):
    has_limit = (top_k > 0) & (top_k < size)
    return has_limit, tl.where(has_limit, top_k, size).to(tl.int32)


@triton.jit
def last_bin(counts, plan, totals, total, size, top_k, top_p, chunks: tl.constexpr):
    """Leaves in `plan` the bin that bounds what may be kept and how many tokens are up to it; in `totals` the mass."""
    number, chunk = tl.arange(0, BINS), tl.arange(0, chunks)
    has_limit, limit = _limit_of(top_k, size)
    found = tl.sum(tl.load(counts + chunk[:, None] * BINS + number[None, :], cache_modifier=".cg"), 0)
    # A bin's tokens weigh at least as its far edge does; a little less, for the rounding of this estimate.
    least = tl.cumsum(found.to(tl.float32) * tl.exp(-(number + 1).to(tl.float32) / BINS_A_UNIT), 0) * (0.999 * ONE)
    is_enough = (tl.cumsum(found, 0) >= limit) | ((not has_limit) & (least >= top_p * total.to(tl.float32)))
    last = tl.min(tl.where(is_enough, number, BINS - 1), 0)
    tl.store(plan, last)
    tl.store(plan + 1, tl.sum(tl.where(number <= last, found, 0), 0))
    tl.store(totals, total)


@triton.jit
def _compared(
    keys, size, top, heat, count, has_limit, limit, top_p, least, total, seed, position,
    id_bits: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    """The drawn token where `count` keys are listed: ranks, masses before and cumulative weights by comparing all."""
    place = tl.arange(0, room)
    key = tl.load(keys + place, mask=place < count, other=LOWEST, cache_modifier=".cg")
    weight = tl.where(place < count, weight_of(logit_of(key, id_bits), top, heat), 0)
    token = size - 1 - (key & ((1 << id_bits) - 1)).to(tl.int32)
    rank, before = tl.zeros((room,), tl.int32), tl.zeros((room,), tl.int64)
    for start in range(0, count, _COMPARED):
        other = start + tl.arange(0, _COMPARED)
        other_key = tl.load(keys + other, mask=other < count, other=LOWEST, cache_modifier=".cg")
        other_weight = weight_of(logit_of(other_key, id_bits), top, heat)
        is_ahead = (other_key[None, :] > key[:, None]) & (other < count)[None, :]
        rank += tl.sum(is_ahead.to(tl.int32), 1)
        before += tl.sum(tl.where(is_ahead, other_weight[None, :], 0), 1)
    is_ranked = (place < count) & (rank < limit)
    if has_limit:
        total = tl.sum(tl.where(is_ranked, weight, 0), 0)
    wanted = top_p.to(tl.float64) * total.to(tl.float64)
    is_kept = is_ranked & ((before.to(tl.float64) < wanted) | (rank == 0)) & (weight.to(tl.float64) >= least)
    cutoff = tl.min(tl.where(is_kept, key, HIGHEST), 0)
    kept_total = tl.sum(tl.where(is_kept, weight, 0), 0)
    threshold = threshold_of(seed, position, kept_total)
    cumulative = tl.zeros((room,), tl.int64)
    for start in range(0, count, _COMPARED):
        other = start + tl.arange(0, _COMPARED)
        other_key = tl.load(keys + other, mask=other < count, other=LOWEST, cache_modifier=".cg")
        other_token = size - 1 - (other_key & ((1 << id_bits) - 1)).to(tl.int32)
        other_weight = weight_of(logit_of(other_key, id_bits), top, heat)
        counts = (other < count) & (other_key >= cutoff) & (other_weight.to(tl.float64) >= least)
        is_up_to = (other_token[None, :] <= token[:, None]) & counts[None, :]
        cumulative += tl.sum(tl.where(is_up_to, other_weight[None, :], 0), 1)
    # The first kept token, in order of ids, whose cumulative weight exceeds the threshold.
    drawn = tl.min(tl.where(is_kept & (cumulative > threshold), token, size), 0)
    return tl.where(drawn < size, drawn, 0)


@triton.jit
def _list_near(own, tokens, size, top, heat, last, block: tl.constexpr):
    """Lists tokens up to bin `last`, lane by lane; returns the length of each lane's list."""
    lane = tl.arange(0, block)
    length = tl.zeros((block,), tl.int32)
    for start in range(0, size, block):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf"))
        is_near = (token < size) & (bin_of(logit, top, heat) <= last)
        tl.store(tokens + length * block + lane, token, mask=is_near)
        length += is_near.to(tl.int32)
    tl.debug_barrier()
    return length


@triton.jit
def _beyond(own, tokens, length, size, top, heat, key, id_bits: tl.constexpr, block: tl.constexpr):
    """(count, mass) of listed tokens whose key is larger than `key`."""
    lane = tl.arange(0, block)
    count, mass = tl.zeros((block,), tl.int32), tl.zeros((block,), tl.int64)
    for line in range(0, tl.max(length, 0)):
        listed = line < length
        token = tl.load(tokens + line * block + lane, mask=listed, other=0)
        logit = tl.load(own + token, mask=listed, other=float("-inf"))
        counts = listed & (key_of(logit, token, size, id_bits) > key)
        count += counts.to(tl.int32)
        mass += tl.where(counts, weight_of(logit, top, heat), 0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _bisected(
    own, tokens, size, top, token, heat, last, has_limit, limit, top_p, total,
    id_bits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The key of the last token that top-k and top-p keep."""
    length = _list_near(own, tokens, size, top, heat, last, block)
    highest, cutoff = key_of(top, token, size, id_bits), tl.full((), LOWEST >> 1, tl.int64)
    if has_limit:
        # The lowest key that fewer than `limit` others exceed is the limit-th.
        low, high = cutoff, highest
        while low < high:
            middle = low + ((high - low) >> 1)
            count, mass = _beyond(own, tokens, length, size, top, heat, middle, id_bits, block)
            is_below = count < limit
            high, low = tl.where(is_below, middle, high), tl.where(is_below, low, middle + 1)
        cutoff = low
        count, total = _beyond(own, tokens, length, size, top, heat, cutoff - 1, id_bits, block)
    if top_p < 1.0:
        wanted = top_p.to(tl.float64) * total.to(tl.float64)
        low, high = cutoff, highest
        while low < high:
            middle = low + ((high - low) >> 1)
            count, mass = _beyond(own, tokens, length, size, top, heat, middle, id_bits, block)
            is_below = mass.to(tl.float64) < wanted
            high, low = tl.where(is_below, middle, high), tl.where(is_below, low, middle + 1)
        cutoff = low
    return cutoff


@triton.jit
def cut_row(
    own, keys, tokens, size, top, token, heat, last, count, top_k, top_p, least, total, seed, position, chunk_len,
    id_bits: tl.constexpr, chunks: tl.constexpr, block: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    """The token that a row draws of what its cuts keep."""
    has_limit, limit = _limit_of(top_k, size)
    if count <= room:
        token = _compared(
            keys, size, top, heat, count, has_limit, limit, top_p, least, total, seed, position, id_bits, room
        )
    else:
        cutoff = _bisected(own, tokens, size, top, token, heat, last, has_limit, limit, top_p, total, id_bits, block)
        number, lane = tl.arange(0, chunks), tl.arange(0, block)
        masses = tl.zeros((chunks,), tl.int64)
        for chunk in range(0, chunks):
            mass = tl.zeros((block,), tl.int64)
            end = tl.minimum(chunk * chunk_len + chunk_len, size)
            for start in range(chunk * chunk_len, end, block):
                mass += kept_weight(own, start + lane, end, size, top, heat, cutoff, least, id_bits)
            masses = tl.where(number == chunk, tl.sum(mass, 0), masses)
        token = pick(
            own, masses, token, size, top, heat, cutoff, least, seed, position, id_bits, chunks, chunk_len, block
        )
    return token
