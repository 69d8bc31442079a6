"""Sampling on CUDA: one launch, a program a row, the integers of the reference.

A row whose choice is cut (top-k, top-p, min-p) is not sorted. Tokens near the best are listed, more of them until
what may be kept is among them, and the last kept one is found by bisection of keys: a logit's bits in rising order,
then the lower id. Counts and masses are sums of integers, so how they are shared out cannot show.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.sample.random_numbers import FIRST, GOLDEN, SECOND
from benthic.kernels.sample.reference import Cuts

_BLOCK, _WARPS = 4096, 16
_BLOCKS_A_CHUNK = 4
# The reference's whole weight, 2^40, and how much further down each try lists tokens: a factor of 2^7.
_ONE = tl.constexpr(2.0**40)
_TRY = tl.constexpr(4.852030263919617)
_TRIES = tl.constexpr(6)
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
    for start in range(0, size, block):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf"))
        better = logit > best
        best, where = tl.where(better, logit, best), tl.where(better, token, where)
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, where, size), 0)
    return top, tl.minimum(token, size - 1)


@triton.jit
def _list_near(own, tokens, size, top, heat, floor, block: tl.constexpr):
    """Lists tokens whose logit is at least `floor`, lane by lane; (length of each lane's list, count, mass)."""
    lane = tl.arange(0, block)
    length = tl.zeros((block,), tl.int32)
    mass = tl.zeros((block,), tl.int64)
    for start in range(0, size, block):
        token = start + lane
        logit = tl.load(own + token, mask=token < size, other=float("-inf"))
        is_near = (token < size) & (logit >= floor)
        tl.store(tokens + length * block + lane, token, mask=is_near)
        mass += tl.where(is_near, _weight(logit, top, heat), 0)
        length += is_near.to(tl.int32)
    return length, tl.sum(length, 0), tl.sum(mass, 0)


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
def _lowest_kept(own, tokens, size, top, token, heat, top_k, top_p, id_bits: tl.constexpr, block: tl.constexpr):
    """The key of the last token that top-k and top-p keep."""
    has_limit = (top_k > 0) & (top_k < size)
    limit = tl.where(has_limit, top_k, size).to(tl.int32)
    lane = tl.arange(0, block)
    whole = tl.zeros((block,), tl.int64)
    for start in range(0, size, block):
        place = start + lane
        logit = tl.load(own + place, mask=place < size, other=float("-inf"))
        whole += tl.where(place < size, _weight(logit, top, heat), 0)
    total = tl.sum(whole, 0)
    wanted = top_p.to(tl.float64) * total.to(tl.float64)
    floor = top - heat * _TRY
    length, count, mass = _list_near(own, tokens, size, top, heat, floor, block)
    tries = 1
    while (count < limit) & (has_limit | (mass.to(tl.float64) < wanted)) & (tries < _TRIES):
        tries += 1
        floor = tl.where(tries < _TRIES, top - heat * _TRY * tries, float("-inf"))
        length, count, mass = _list_near(own, tokens, size, top, heat, floor, block)
    tl.debug_barrier()
    highest, cutoff = key_of(top, token, size, id_bits), key_of(floor, size - 1, size, id_bits)
    if has_limit:
        # The largest key that fewer than `limit` others exceed is too high; the lowest such is the limit-th.
        low, high = cutoff, highest
        while low < high:
            middle = low + (((high - low).to(tl.uint64)) >> 1).to(tl.int64)
            count, mass = _beyond(own, tokens, length, size, top, heat, middle, id_bits, block)
            is_below = count < limit
            high, low = tl.where(is_below, middle, high), tl.where(is_below, low, middle + 1)
        cutoff = low
        count, total = _beyond(own, tokens, length, size, top, heat, cutoff - 1, id_bits, block)
        wanted = top_p.to(tl.float64) * total.to(tl.float64)
    if top_p < 1.0:
        low, high = cutoff, highest
        while low < high:
            middle = low + (((high - low).to(tl.uint64)) >> 1).to(tl.int64)
            count, mass = _beyond(own, tokens, length, size, top, heat, middle, id_bits, block)
            is_below = mass.to(tl.float64) < wanted
            high, low = tl.where(is_below, middle, high), tl.where(is_below, low, middle + 1)
        cutoff = low
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
    logits, temperature, top_k, top_p, min_p, seeds, positions, tokens, drawn, size, row_step,
    has_cuts: tl.constexpr, id_bits: tl.constexpr, num_chunks: tl.constexpr, blocks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own, heat = logits + row * row_step, tl.load(temperature + row)
    top, token = _best(own, size, block)
    if heat > 0:
        cutoff, least = tl.full((), _LOWEST, tl.int64), tl.full((), 0.0, tl.float64)
        if has_cuts:
            k, p, m = tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row)
            if ((k > 0) & (k < size)) | (p < 1.0):
                listed = tokens + row * (num_chunks * blocks * block)
                cutoff = _lowest_kept(own, listed, size, top, token, heat, k, p, id_bits, block)
            least = m.to(tl.float64) * _ONE
        lane, number = tl.arange(0, block), tl.arange(0, num_chunks)
        masses = tl.zeros((num_chunks,), tl.int64)
        for chunk in range(0, num_chunks):
            mass = tl.zeros((block,), tl.int64)
            for part in range(0, blocks):
                place = (chunk * blocks + part) * block + lane
                mass += _kept_weight(own, place, size, top, heat, cutoff, least, has_cuts, id_bits)
            masses = tl.where(number == chunk, tl.sum(mass, 0), masses)
        total = tl.sum(masses, 0)
        u = uniform_of(tl.load(seeds + row), tl.load(positions + row))
        threshold = tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)
        chunk = tl.minimum(tl.sum((tl.cumsum(masses, 0) <= threshold).to(tl.int32), 0), num_chunks - 1)
        before = tl.sum(tl.where(number < chunk, masses, 0), 0)
        # Where nothing has a weight, as beside NaN, the first token.
        token = 0
        for part in range(0, blocks):
            first = (chunk * blocks + part) * block
            weight = _kept_weight(own, first + lane, size, top, heat, cutoff, least, has_cuts, id_bits)
            after = before + tl.sum(weight, 0)
            if (before <= threshold) & (threshold < after):
                token = first + tl.sum((tl.cumsum(weight, 0) + before <= threshold).to(tl.int32), 0)
            before = after
    tl.store(drawn + row, token.to(tl.int64))


def sample_triton(
    logits: Tensor, temperature: Tensor, cuts: Cuts | None, seeds: Tensor, positions: Tensor, block: int = _BLOCK
) -> Tensor:
    """See `sample`. `block` is for tests of small vocabularies."""
    logits = logits if logits.dtype is torch.float32 and logits.stride(1) == 1 else logits.float().contiguous()
    rows, size = logits.shape
    drawn = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if not rows:
        return drawn
    chunks = triton.next_power_of_2(triton.cdiv(size, block * _BLOCKS_A_CHUNK))
    tokens = drawn
    if cuts is not None:
        room = chunks * _BLOCKS_A_CHUNK * block
        tokens = torch.empty((rows, room), dtype=torch.int32, device=logits.device)
    top_k, top_p, min_p = (drawn, temperature, temperature) if cuts is None else cuts
    _sample[(rows,)](
        logits, temperature, top_k, top_p, min_p, seeds, positions, tokens, drawn, size, logits.stride(0),
        cuts is not None, size.bit_length(), chunks, _BLOCKS_A_CHUNK, block, num_warps=_WARPS if block >= 1024 else 1,
    )  # fmt: skip
    return drawn
