"""Sampling on CUDA: one launch, a program a row, the integers of the reference.

A row whose choice is cut (top-k, top-p, min-p) is not sorted. A histogram of logits says how far below the best what
may be kept can lie; tokens above that are listed, and their keys (a logit's bits in rising order, then the lower id)
are compared with one another, or bisected where they are many. Counts and masses are sums of integers, so how they are
shared out, and in which order tokens are listed, cannot show.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.sample.random_numbers import FIRST, GOLDEN, SECOND
from benthic.kernels.sample.reference import Cuts

_BLOCK, _CUT_BLOCK, _WARPS, _COUNTED = 8192, 4096, 16, 2048
_ONE = tl.constexpr(2.0**40)
"""The reference's whole weight."""
# Bins of the histogram: an eighth of a natural unit each, at the row's temperature; the last holds all the rest.
_BINS, _BINS_A_UNIT = tl.constexpr(256), tl.constexpr(8.0)
_STAGES, _COMPARED = tl.constexpr(4), tl.constexpr(8)
"""Blocks of logits on their way at once; keys that all others are compared with at once."""
_FIRST, _SECOND, _GOLDEN = tl.constexpr(FIRST), tl.constexpr(SECOND), tl.constexpr(GOLDEN)
_LOWEST = tl.constexpr(-(2**63))


@triton.jit
def mixed(x):
    """`random_numbers.mix` of a uint64."""
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def uniform_of(seed, position):
    """`random_numbers.uniform`: float64 in [0, 1)."""
    step = (position + 1).to(tl.uint64) * _GOLDEN
    bits = mixed(mixed(seed.to(tl.uint64)) + step)
    return (bits >> 11).to(tl.int64).to(tl.float64) * (1.0 / 9007199254740992.0)


@triton.jit
def key_of(logit, token, size, id_bits: tl.constexpr):
    """int64 that rises with the logit and, among equal logits, falls with the token; no two are equal."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)
    rank = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (rank.to(tl.int64) << id_bits) + (size - 1 - token).to(tl.int64)


@triton.jit
def _logit_of(key, id_bits: tl.constexpr):
    """The logit that a key was made of; both zeros alike."""
    rank = (key >> id_bits).to(tl.int32)
    return tl.where(rank < 0, rank ^ 0x7FFFFFFF, rank).to(tl.float32, bitcast=True)


@triton.jit
def _weight(logit, top, heat):
    """`integer_weights`; 2^40 is a power of two, so scaling by it is exact."""
    share = tl.exp(tl.div_rn(logit - top, tl.full(logit.shape, 1.0, tl.float32) * heat))
    return tl.where(share > 0, share * _ONE, 0.0).to(tl.int64)


@triton.jit
def _best(own, size, block: tl.constexpr):
    """(largest logit, its first token)."""
    lane = tl.arange(0, block)
    best = tl.full((block,), float("-inf"), tl.float32)
    where = tl.full((block,), 0, tl.int32)
    for start in tl.range(0, size, block, num_stages=_STAGES):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf"))
        better = logit > best
        best, where = tl.where(better, logit, best), tl.where(better, token, where)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, where, size), 0)
    return top, tl.minimum(token, size - 1)


@triton.jit
def _bin(logit, top, heat):
    """int32 that falls with the logit, 0 for the best; NaN and -inf are in the last bin."""
    distance = tl.div_rn(top - logit, tl.full(logit.shape, 1.0, tl.float32) * heat) * _BINS_A_UNIT
    return tl.where(distance < _BINS - 1, distance, _BINS - 1).to(tl.int32)


@triton.jit
def _last_bin(own, size, top, heat, limit, has_limit, top_p, block: tl.constexpr):
    """(bin that bounds what may be kept, how many tokens are up to it, mass of all tokens)."""
    lane, number = tl.arange(0, block), tl.arange(0, _BINS)
    counts, mass = tl.zeros((_BINS,), tl.int32), tl.zeros((block,), tl.int64)
    for start in tl.range(0, size, block, num_stages=_STAGES):
        token = start + lane
        inside = token < size
        logit = tl.load(own + token, mask=inside, other=float("-inf"))
        counts += tl.histogram(_bin(logit, top, heat), _BINS, mask=inside)
        mass += tl.where(inside, _weight(logit, top, heat), 0)
    total = tl.sum(mass, 0)
    up_to = tl.cumsum(counts, 0)
    # A bin's tokens weigh at least as its far edge does; a little less, for the rounding of this estimate.
    least = tl.cumsum(counts.to(tl.float32) * tl.exp(-(number + 1).to(tl.float32) / _BINS_A_UNIT), 0) * (0.999 * _ONE)
    is_enough = (up_to >= limit) | ((not has_limit) & (least >= top_p * total.to(tl.float32)))
    last = tl.min(tl.where(is_enough, number, _BINS - 1), 0)
    return last, tl.sum(tl.where(number <= last, counts, 0), 0), total


@triton.jit
def _counted_cutoff(
    own, keys, counter, size, top, heat, last, count, limit, has_limit, total, top_p,
    id_bits: tl.constexpr, block: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    """The key of the last token that is kept, by comparing the few that may be with one another."""
    lane, place = tl.arange(0, block), tl.arange(0, room)
    tl.store(counter, 0)
    tl.debug_barrier()
    for start in tl.range(0, size, block, num_stages=_STAGES):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf"))
        is_near = (token < size) & (_bin(logit, top, heat) <= last)
        free = tl.atomic_add(counter + tl.zeros((block,), tl.int32), 1, mask=is_near)
        tl.store(keys + free, key_of(logit, token, size, id_bits), mask=is_near)
    tl.debug_barrier()
    key = tl.load(keys + place, mask=place < count, other=_LOWEST)
    rank, before = tl.zeros((room,), tl.int32), tl.zeros((room,), tl.int64)
    for start in range(0, count, _COMPARED):
        other = start + tl.arange(0, _COMPARED)
        other_key = tl.load(keys + other, mask=other < count, other=_LOWEST)
        weight = _weight(_logit_of(other_key, id_bits), top, heat)
        is_ahead = (other_key[None, :] > key[:, None]) & (other < count)[None, :]
        rank += tl.sum(is_ahead.to(tl.int32), 1)
        before += tl.sum(tl.where(is_ahead, weight[None, :], 0), 1)
    is_ranked = (place < count) & (rank < limit)
    if has_limit:
        total = tl.sum(tl.where(is_ranked, _weight(_logit_of(key, id_bits), top, heat), 0), 0)
    wanted = top_p.to(tl.float64) * total.to(tl.float64)
    is_kept = is_ranked & ((before.to(tl.float64) < wanted) | (rank == 0))
    return tl.min(tl.where(is_kept, key, 0x7FFFFFFFFFFFFFFF), 0)


@triton.jit
def _list_near(own, tokens, size, top, heat, last, block: tl.constexpr):
    """Lists tokens up to bin `last`, lane by lane; returns the length of each lane's list."""
    lane = tl.arange(0, block)
    length = tl.zeros((block,), tl.int32)
    for start in tl.range(0, size, block, num_stages=_STAGES):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf"))
        is_near = (token < size) & (_bin(logit, top, heat) <= last)
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
        mass += tl.where(counts, _weight(logit, top, heat), 0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _bisected_cutoff(
    own, tokens, size, top, token, heat, last, limit, has_limit, total, top_p,
    id_bits: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The same where many may be kept: the key is bisected, each half weighed by going through the list."""
    length = _list_near(own, tokens, size, top, heat, last, block)
    highest, cutoff = key_of(top, token, size, id_bits), tl.full((), _LOWEST >> 1, tl.int64)
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
def _lowest_kept(
    own, tokens, keys, counter, size, top, token, heat, top_k, top_p,
    id_bits: tl.constexpr, block: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    """The key of the last token that top-k and top-p keep."""
    has_limit = (top_k > 0) & (top_k < size)
    limit = tl.where(has_limit, top_k, size).to(tl.int32)
    last, count, total = _last_bin(own, size, top, heat, limit, has_limit, top_p, block)
    cutoff = tl.full((), _LOWEST, tl.int64)
    if count <= room:
        cutoff = _counted_cutoff(
            own, keys, counter, size, top, heat, last, count, limit, has_limit, total, top_p, id_bits, block, room
        )
    else:
        cutoff = _bisected_cutoff(
            own, tokens, size, top, token, heat, last, limit, has_limit, total, top_p, id_bits, block
        )
    return cutoff


@triton.jit
def _kept_weight(own, place, size, top, heat, cutoff, least, has_cuts: tl.constexpr, id_bits: tl.constexpr):
    logit = tl.load(own + place, mask=place < size, other=float("-inf"))
    weight = tl.where(place < size, _weight(logit, top, heat), 0)
    if has_cuts:
        is_kept = (key_of(logit, place, size, id_bits) >= cutoff) & (weight.to(tl.float64) >= least)
        weight = tl.where(is_kept, weight, 0)
    return weight


@triton.jit
def _sample(
    logits, temperature, top_k, top_p, min_p, seeds, positions, tokens, keys, counters, drawn, size, row_step,
    has_cuts: tl.constexpr, id_bits: tl.constexpr, num_chunks: tl.constexpr, block: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own, heat = logits + row * row_step, tl.load(temperature + row)
    top, token = _best(own, size, block)
    if heat > 0:
        cutoff, least = tl.full((), _LOWEST, tl.int64), tl.full((), 0.0, tl.float64)
        if has_cuts:
            k, p, m = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
            if ((k > 0) & (k < size)) | (p < 1.0):
                cutoff = _lowest_kept(
                    own, tokens + row * (num_chunks * block), keys + row * room, counters + row, size, top, token,
                    heat, k, p, id_bits, block, room
                )  # fmt: skip
            least = m.to(tl.float64) * _ONE
        lane, number = tl.arange(0, block), tl.arange(0, num_chunks)
        masses = tl.zeros((num_chunks,), tl.int64)
        for chunk in tl.range(0, num_chunks, num_stages=_STAGES):
            weight = _kept_weight(own, chunk * block + lane, size, top, heat, cutoff, least, has_cuts, id_bits)
            masses = tl.where(number == chunk, tl.sum(weight, 0), masses)
        total = tl.sum(masses, 0)
        u = uniform_of(tl.load(seeds + row), tl.load(positions + row))
        threshold = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
        chunk = tl.minimum(tl.sum((tl.cumsum(masses, 0) <= threshold).to(tl.int32), 0), num_chunks - 1)
        before = tl.sum(tl.where(number < chunk, masses, 0), 0)
        weight = _kept_weight(own, chunk * block + lane, size, top, heat, cutoff, least, has_cuts, id_bits)
        token = chunk * block + tl.sum((tl.cumsum(weight, 0) + before <= threshold).to(tl.int32), 0)
        # Where nothing has a weight, as beside NaN, the first token.
        token = tl.where(total > 0, tl.minimum(token, size - 1), 0)
    tl.store(drawn + row, token.to(tl.int64))


def sample_triton(
    logits: Tensor,
    temperature: Tensor,
    cuts: Cuts | None,
    seeds: Tensor,
    positions: Tensor,
    block: int = 0,
    room: int = _COUNTED,
) -> Tensor:
    """See `sample`. `block` and `room` (the most keys that are compared) are for tests of small vocabularies."""
    logits = logits if logits.dtype is torch.float32 and logits.stride(1) == 1 else logits.float().contiguous()
    (rows, size), on = logits.shape, logits.device
    block = block or (_BLOCK if cuts is None else _CUT_BLOCK)
    drawn = torch.empty(rows, dtype=torch.int64, device=on)
    if not rows:
        return drawn
    chunks = triton.next_power_of_2(triton.cdiv(size, block))
    tokens = keys = counters = drawn
    if cuts is not None:
        tokens = torch.empty((rows, chunks * block), dtype=torch.int32, device=on)
        keys = torch.empty((rows, room), dtype=torch.int64, device=on)
        counters = torch.empty(rows, dtype=torch.int32, device=on)
    # Settings may be columns of a table.
    settings = (temperature, *(cuts or (drawn, temperature, temperature)), seeds, positions)
    _sample[(rows,)](
        logits, *(setting.contiguous() for setting in settings), tokens, keys, counters, drawn, size,
        logits.stride(0), cuts is not None, size.bit_length(), chunks, block, room,
        num_warps=_WARPS if block >= 1024 else 1,
    )  # fmt: skip
    return drawn
