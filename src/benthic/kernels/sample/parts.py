"""Pieces of the sampling kernels: random numbers, keys, weights, bins, and the pick by cumulative weight."""

import triton
import triton.language as tl

from benthic.kernels.sample.random_numbers import FIRST, GOLDEN, SECOND

ONE = tl.constexpr(2.0**40)
"""The reference's whole weight."""
BINS, BINS_A_UNIT = tl.constexpr(256), tl.constexpr(8.0)
"""An eighth of a natural unit each, at the row's temperature; the last one holds all the rest."""
LOWEST, HIGHEST = tl.constexpr(-(2**63)), tl.constexpr(2**63 - 1)
_FIRST, _SECOND, _GOLDEN = tl.constexpr(FIRST), tl.constexpr(SECOND), tl.constexpr(GOLDEN)


@triton.jit
def _mixed(x):
    """`random_numbers.mix` of a uint64."""
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def threshold_of(seed, position, total):
    """u times the total, u the float64 of `random_numbers.uniform`, below the total."""
    step = (position + 1).to(tl.uint64) * _GOLDEN
    bits = _mixed(_mixed(seed.to(tl.uint64)) + step)
    u = (bits >> 11).to(tl.int64).to(tl.float64) * (1.0 / 9007199254740992.0)
    return tl.minimum((u * total.to(tl.float64)).to(tl.int64), total - 1)


@triton.jit
def key_of(logit, token, size, id_bits: tl.constexpr):
    """int64 that rises with the logit and, among equal logits, falls with the token; no two are equal."""
    bits = (logit + 0.0).to(tl.int32, bitcast=True)
    rank = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (rank.to(tl.int64) << id_bits) + (size - 1 - token).to(tl.int64)


@triton.jit
def logit_of(key, id_bits: tl.constexpr):
    """The logit that a key was made of; both zeros alike."""
    rank = (key >> id_bits).to(tl.int32)
    return tl.where(rank < 0, rank ^ 0x7FFFFFFF, rank).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(logit, top, heat):
    """`integer_weights`; 2^40 is a power of two, so scaling by it is exact."""
    share = tl.exp((logit - top) / heat)
    return tl.where(share > 0, share * ONE, 0.0).to(tl.int64)


@triton.jit
def bin_of(logit, top, heat):
    """int32 that falls with the logit, 0 for the best; NaN and -inf are in the last bin."""
    distance = (top - logit) / heat * BINS_A_UNIT
    return tl.where(distance < BINS - 1, distance, BINS - 1).to(tl.int32)


@triton.jit
def kept_weight(own, token, end, size, top, heat, cutoff, least, id_bits: tl.constexpr):
    """Weights of tokens before `end`, 0 for keys below the cutoff and weights below the least."""
    logit = tl.load(own + token, mask=token < end, other=float("-inf"))
    weight = tl.where(token < end, weight_of(logit, top, heat), 0)
    is_kept = (key_of(logit, token, size, id_bits) >= cutoff) & (weight.to(tl.float64) >= least)
    return tl.where(is_kept, weight, 0)


@triton.jit
def pick(
    own, masses, start_of, size, top, heat, cutoff, least, seed, position,
    id_bits: tl.constexpr, chunks: tl.constexpr, chunk_len, block: tl.constexpr,
):  # fmt: skip
    """The first token whose cumulative weight exceeds the threshold; `masses` [chunks] are of chunks in order."""
    number = tl.arange(0, chunks)
    total = tl.sum(masses, 0)
    threshold = threshold_of(seed, position, total)
    chunk = tl.minimum(tl.sum((tl.cumsum(masses, 0) <= threshold).to(tl.int32), 0), chunks - 1)
    before = tl.sum(tl.where(number < chunk, masses, 0), 0)
    token, lane = start_of, tl.arange(0, block)
    end = tl.minimum(chunk * chunk_len + chunk_len, size)
    for start in range(chunk * chunk_len, end, block):
        weight = kept_weight(own, start + lane, end, size, top, heat, cutoff, least, id_bits)
        after = before + tl.sum(weight, 0)
        if (before <= threshold) & (threshold < after):
            token = start + tl.sum((tl.cumsum(weight, 0) + before <= threshold).to(tl.int32), 0)
        before = after
    # Where nothing has a weight, as beside NaN, the first token.
    return tl.where(total > 0, token, 0)
