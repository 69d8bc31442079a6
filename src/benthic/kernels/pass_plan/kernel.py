"""The plan of a pass of single rows in one launch, a program a row; and what became of its drafts, likewise."""

import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.pass_plan.layout import ENTRY_PARTS, REAL, RELAYED, ROW_PARTS, Column, PlanBuffers

_COLUMNS = tl.constexpr(len(Column))
_TOKEN, _POSITION = tl.constexpr(int(Column.TOKEN)), tl.constexpr(int(Column.POSITION))
_REQUEST_ROW, _FLAGS = tl.constexpr(int(Column.REQUEST_ROW)), tl.constexpr(int(Column.FLAGS))
_OFFSET, _NEXT_DRAFT = tl.constexpr(int(Column.OFFSET)), tl.constexpr(int(Column.NEXT_DRAFT))
_SEQUENCE, _SEED = tl.constexpr(int(Column.SEQUENCE)), tl.constexpr(int(Column.SEED))
_TOP_K, _TEMPERATURE = tl.constexpr(int(Column.TOP_K)), tl.constexpr(int(Column.TEMPERATURE))
_REAL, _RELAYED = tl.constexpr(REAL), tl.constexpr(RELAYED)


@triton.jit
def _store_turns(floats, table, row, position, frequencies, amplitude, capacity: tl.constexpr, pairs: tl.constexpr,
                 width: tl.constexpr):  # fmt: skip
    """Cosines and sines of position times frequency, as `rope_table` makes them."""
    pair = tl.arange(0, width)
    inside = pair < pairs
    angle = position.to(tl.float32) * tl.load(frequencies + pair, mask=inside, other=0.0)
    out = floats + (2 * table * capacity + row) * pairs + pair
    tl.store(out, tl.cos(angle) * amplitude, mask=inside)
    tl.store(out + capacity * pairs, tl.sin(angle) * amplitude, mask=inside)


@triton.jit
def _store_entry(
    words, flags_out, row, position, request_row, is_real, page_id, number: tl.constexpr, page: tl.constexpr,
    capacity: tl.constexpr, ratio: tl.constexpr, reach: tl.constexpr, ring: tl.constexpr, part: tl.constexpr,
    lanes: tl.constexpr
):  # fmt: skip
    """One ratio's parts: the entry's slot, the ring slot, the first token, and the sources. `lanes` cover these."""
    a_page: tl.constexpr = page // ratio
    block = position // ratio
    first = block * ratio
    is_done = (page_id > 0) & (position - first == ratio - 1)
    out = words + part * capacity + row
    tl.store(out, tl.where(is_done, page_id * a_page + block % a_page, -1))
    tl.store(out + capacity, tl.where(is_real, request_row * ring + position % ring, -1))
    tl.store(out + 2 * capacity, first)
    tl.store(out + 3 * capacity, tl.where(is_real, request_row * ring, -1))
    tl.store(out + 4 * capacity, tl.where(is_done, row, -1))
    source = tl.arange(0, lanes)
    needed = tl.maximum(first - reach + source, 0)
    sources = words + (part + 5) * capacity + row * (ratio + reach) + source
    tl.store(sources, request_row * ring + needed % ring, mask=source < ratio + reach)
    tl.store(flags_out + number * capacity + row, (first == 0).to(tl.uint8))


@triton.jit
def _plan(
    given, newest, windows, pages, frequencies, words, floats, flags_out, amplitude, num_pages,
    page: tl.constexpr, snapshot_rows: tl.constexpr, ratios: tl.constexpr, num_tables: tl.constexpr,
    capacity: tl.constexpr, pairs: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """`ratios`: (ratio, reach, ring length, table, first part in `words`, sources rounded up) each."""
    row = tl.program_id(0).to(tl.int64)
    own = given + row * _COLUMNS
    position, request_row = tl.load(own + _POSITION), tl.load(own + _REQUEST_ROW)
    flags = tl.load(own + _FLAGS)
    token = tl.where((flags & _RELAYED) != 0, tl.load(newest + request_row), tl.load(own + _TOKEN))
    is_real = (flags & _REAL) != 0
    cell = request_row * num_pages + position // page
    window_id, page_id = tl.load(windows + cell), tl.load(pages + cell)
    place = position % page
    has_window = is_real & (window_id > 0)
    has_page = is_real & (page_id > 0)
    before = place - (page - snapshot_rows)
    keeps = has_window & (before >= 0) & (snapshot_rows > 0)
    tl.store(words + row, token)
    tl.store(words + capacity + row, position)
    tl.store(words + 2 * capacity + row, position + 1)
    tl.store(words + 3 * capacity + row, request_row)
    tl.store(words + 4 * capacity + row, tl.where(has_window, window_id * page + place, -1))
    tl.store(words + 5 * capacity + row, tl.where(keeps, window_id * snapshot_rows + before, -1))
    tl.store(words + 6 * capacity + row, tl.where(has_page, page_id * page + place, -1))
    tl.store(words + 7 * capacity + row, tl.load(own + _OFFSET))
    tl.store(words + 8 * capacity + row, tl.load(own + _SEED))
    tl.store(words + 9 * capacity + row, tl.load(own + _TOP_K))
    drawing = floats + 2 * (num_tables + len(ratios)) * capacity * pairs + row
    for part in tl.static_range(3):
        value = tl.load(own + _TEMPERATURE + part).to(tl.float64, bitcast=True)
        tl.store(drawing + part * capacity, value.to(tl.float32))
    for table in tl.static_range(num_tables):
        _store_turns(floats, table, row, position, frequencies + table * pairs, amplitude, capacity, pairs, width)
    for number in tl.static_range(len(ratios)):
        _store_entry(
            words, flags_out, row, position, request_row, is_real, tl.where(has_page, page_id, 0), number, page,
            capacity, ratios[number][0], ratios[number][1], ratios[number][2], ratios[number][4], ratios[number][5]
        )  # fmt: skip
        first = position // ratios[number][0] * ratios[number][0]
        turns = frequencies + ratios[number][3] * pairs
        _store_turns(floats, num_tables + number, row, first, turns, amplitude, capacity, pairs, width)


@triton.jit
def _settle(given, drawn, is_finite, newest, ends, out):
    row = tl.program_id(0).to(tl.int64)
    own = given + row * _COLUMNS
    token = tl.load(drawn + row)
    tl.store(out + 2 * row, token)
    tl.store(out + 2 * row + 1, tl.load(is_finite + row).to(tl.int64))
    counts = ((tl.load(own + _FLAGS) & _REAL) != 0) & (token != tl.load(own + _NEXT_DRAFT))
    for back in range(1, tl.load(own + _OFFSET).to(tl.int32) + 1):
        # Every draft before this row must have been the token drawn from the row before it.
        counts = counts & (tl.load(drawn + row - back) == tl.load(own - back * _COLUMNS + _NEXT_DRAFT))
    tl.store(newest + tl.load(own + _REQUEST_ROW), token, mask=counts)
    tl.store(ends + tl.load(own + _SEQUENCE), row, mask=counts)


def plan_rows_triton(
    given: Tensor, newest: Tensor, windows: Tensor, pages: Tensor, frequencies: Tensor, out: PlanBuffers
) -> None:
    """See `plan_rows`."""
    shape = out.shape
    ratios, part = [], ROW_PARTS
    for ratio in shape.compressed:
        lanes = triton.next_power_of_2(ratio.num_sources)
        ratios.append((ratio.ratio, ratio.reach, ratio.ring_len, ratio.table, part, lanes))
        part += ENTRY_PARTS + ratio.num_sources
    _plan[(len(given),)](
        given, newest, windows, pages, frequencies, out.words, out.floats, out.flags, shape.amplitude,
        windows.shape[1], page=shape.page_size, snapshot_rows=shape.snapshot_rows, ratios=tuple(ratios),
        num_tables=shape.num_tables, capacity=out.capacity, pairs=shape.num_pairs,
        width=triton.next_power_of_2(max(shape.num_pairs, 2)), num_warps=2,
    )  # fmt: skip


def settle_rows_triton(
    given: Tensor, drawn: Tensor, is_finite: Tensor, newest: Tensor, ends: Tensor, out: Tensor
) -> None:
    """See `settle_rows`."""
    _settle[(len(given),)](given, drawn, is_finite, newest, ends, out, num_warps=1)
