"""Sampling on CUDA: two launches, three where choices are cut; the integers of the reference.

A row's vocabulary is cut into chunks, one a program: one launch finds each chunk's best, the next weighs each chunk
beside the row's best. Whoever finishes a row last picks its token. Counts and masses are sums of integers, so how they
are shared out, and who is last, cannot show.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.sample.cuts_kernel import cut_row, last_bin
from benthic.kernels.sample.parts import BINS, LOWEST, ONE, bin_of, key_of, pick, weight_of
from benthic.kernels.sample.reference import Cuts

_BLOCK, _MOST_CHUNKS, _MOST_COMPARED = 1024, 32, 1024


@triton.jit
def _find_best(
    logits, best, places, counters, size, row_step, chunk_len, chunks: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Each chunk's largest logit and its first token; sets the row's counters to zero."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own, lane = logits + row * row_step, tl.arange(0, block)
    largest, place = tl.full((block,), float("-inf"), tl.float32), tl.full((block,), 0, tl.int32)
    first = chunk * chunk_len
    end = tl.minimum(first + chunk_len, size)
    for start in range(first, end, block):
        token = start + lane
        logit = tl.load(own + token, mask=token < end, other=float("-inf"))
        better = logit > largest
        largest, place = tl.where(better, logit, largest), tl.where(better, token, place)
    top = tl.max(largest, 0)
    tl.store(best + row * chunks + chunk, top)
    tl.store(places + row * chunks + chunk, tl.min(tl.where(largest == top, place, size - 1), 0))
    if chunk == 0:
        counter = tl.arange(0, 4)
        tl.store(counters + row * 4 + counter, tl.zeros_like(counter))


@triton.jit
def top_of(best, places, row, size, chunks: tl.constexpr):
    """(largest logit of the row, its first token)."""
    number = tl.arange(0, chunks)
    values = tl.load(best + row * chunks + number)
    top = tl.max(values, 0)
    token = tl.min(tl.where(values == top, tl.load(places + row * chunks + number), size - 1), 0)
    return top, token


@triton.jit
def _weigh(
    logits, temperature, top_k, top_p, min_p, seeds, positions, best, places, counters, masses, counts, plan, totals,
    drawn, size, row_step, chunk_len,
    has_cuts: tl.constexpr, id_bits: tl.constexpr, chunks: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Each chunk's mass and, where ranks are cut, its histogram; the last program of a row goes on from there."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own, heat = logits + row * row_step, tl.load(temperature + row)
    top, token = top_of(best, places, row, size, chunks)
    if heat > 0:
        lane, number, bins = tl.arange(0, block), tl.arange(0, chunks), tl.arange(0, BINS)
        least, is_ranked = tl.full((), 0.0, tl.float64), False
        if has_cuts:
            k, p = tl.load(top_k + row), tl.load(top_p + row)
            is_ranked = ((k > 0) & (k < size)) | (p < 1.0)
            # Among ranked rows, the least weight counts after the rest has been cut off.
            least = tl.where(is_ranked, least, tl.load(min_p + row).to(tl.float64) * ONE)
        mass, found = tl.zeros((block,), tl.int64), tl.zeros((BINS,), tl.int32)
        end = tl.minimum(chunk * chunk_len + chunk_len, size)
        for start in range(chunk * chunk_len, end, block):
            place = start + lane
            logit = tl.load(own + place, mask=place < end, other=float("-inf"))
            weight = tl.where(place < end, weight_of(logit, top, heat), 0)
            mass += tl.where(weight.to(tl.float64) >= least, weight, 0)
            if is_ranked:
                found += tl.histogram(bin_of(logit, top, heat), BINS, mask=place < end)
        tl.store(masses + row * chunks + chunk, tl.sum(mass, 0))
        if is_ranked:
            tl.store(counts + (row * chunks + chunk) * BINS + bins, found)
        tl.debug_barrier()
        if tl.atomic_add(counters + row * 4, 1) == chunks - 1:
            own_masses = tl.load(masses + row * chunks + number, cache_modifier=".cg")
            if is_ranked:
                last_bin(
                    counts + row * chunks * BINS, plan + row * 2, totals + row, tl.sum(own_masses, 0), size,
                    tl.load(top_k + row), tl.load(top_p + row), chunks,
                )  # fmt: skip
            else:
                token = pick(
                    own, own_masses, token, size, top, heat, tl.full((), LOWEST, tl.int64), least,
                    tl.load(seeds + row), tl.load(positions + row), id_bits, chunks, chunk_len, block
                )  # fmt: skip
                tl.store(drawn + row, token.to(tl.int64))
    elif chunk == 0:
        tl.store(drawn + row, token.to(tl.int64))


@triton.jit
def _cut(
    logits, temperature, top_k, top_p, min_p, seeds, positions, best, places, counters, plan, totals, keys, tokens,
    drawn, size, row_step, chunk_len,
    id_bits: tl.constexpr, chunks: tl.constexpr, block: tl.constexpr, room: tl.constexpr,
):  # fmt: skip
    """Rows whose ranks are cut: each program lists what its chunk may keep; the last one of a row picks."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    own, heat = logits + row * row_step, tl.load(temperature + row)
    k, p = tl.load(top_k + row), tl.load(top_p + row)
    if (heat > 0) & (((k > 0) & (k < size)) | (p < 1.0)):
        top, token = top_of(best, places, row, size, chunks)
        last, count = tl.load(plan + row * 2), tl.load(plan + row * 2 + 1)
        if count <= room:
            lane = tl.arange(0, block)
            end = tl.minimum(chunk * chunk_len + chunk_len, size)
            for start in range(chunk * chunk_len, end, block):
                place = start + lane
                logit = tl.load(own + place, mask=place < end, other=float("-inf"))
                is_near = (place < end) & (bin_of(logit, top, heat) <= last)
                free = tl.atomic_add(counters + row * 4 + 1 + tl.zeros((block,), tl.int32), 1, mask=is_near)
                tl.store(keys + row * room + free, key_of(logit, place, size, id_bits), mask=is_near)
        tl.debug_barrier()
        if tl.atomic_add(counters + row * 4 + 2, 1) == chunks - 1:
            token = cut_row(
                own, keys + row * room, tokens + row * (chunks * chunk_len), size, top, token, heat, last, count, k, p,
                tl.load(min_p + row).to(tl.float64) * ONE, tl.load(totals + row), tl.load(seeds + row),
                tl.load(positions + row), chunk_len, id_bits, chunks, block, room,
            )  # fmt: skip
            tl.store(drawn + row, token.to(tl.int64))


def sample_triton(
    logits: Tensor,
    temperature: Tensor,
    cuts: Cuts | None,
    seeds: Tensor,
    positions: Tensor,
    block: int = _BLOCK,
    room: int = _MOST_COMPARED,
) -> Tensor:
    """See `sample`. `block` and `room` (the most keys that are compared) are for tests of small vocabularies."""
    logits = logits if logits.dtype is torch.float32 and logits.stride(1) == 1 else logits.float().contiguous()
    (rows, size), on = logits.shape, logits.device
    drawn = torch.empty(rows, dtype=torch.int64, device=on)
    if not rows:
        return drawn
    chunks = min(_MOST_CHUNKS, triton.next_power_of_2(triton.cdiv(size, block)))
    chunk_len = triton.cdiv(triton.cdiv(size, chunks), block) * block
    wide = torch.empty(rows * (chunks + 1), dtype=torch.int64, device=on)
    best = torch.empty((rows, chunks), dtype=torch.float32, device=on)
    small = torch.empty(rows * (chunks + 6), dtype=torch.int32, device=on)
    places, counters, plan = small.split([rows * chunks, 4 * rows, 2 * rows])
    masses, totals = wide.split([rows * chunks, rows])
    counts = keys = tokens = drawn
    if cuts is not None:
        counts = torch.empty((rows, chunks, BINS.value), dtype=torch.int32, device=on)
        keys = torch.empty((rows, room), dtype=torch.int64, device=on)
        tokens = torch.empty((rows, chunks * chunk_len), dtype=torch.int32, device=on)
    # Settings may be columns of a table.
    given = (temperature, *(cuts or (drawn, temperature, temperature)), seeds, positions)
    settings = [setting.contiguous() for setting in given]
    ends, grid, id_bits = (size, logits.stride(0), chunk_len), (rows, chunks), size.bit_length()
    _find_best[grid](logits, best, places, counters, *ends, chunks, block, num_warps=4)
    _weigh[grid](
        logits, *settings, best, places, counters, masses, counts, plan, totals, drawn, *ends,
        cuts is not None, id_bits, chunks, block, num_warps=4,
    )  # fmt: skip
    if cuts is not None:
        _cut[grid](
            logits, *settings, best, places, counters, plan, totals, keys, tokens, drawn, *ends, id_bits, chunks, block,
            room, num_warps=8,
        )  # fmt: skip
    return drawn
