"""The meaning of a plan, as tensor operations: what `cache.paged_context` plans on the host for the same rows."""

import torch
from torch import Tensor

from benthic.kernels.pass_plan.layout import REAL, RELAYED, Column, DrawPlan, EntryPlan, PlanBuffers, RatioShape
from benthic.kernels.rope import RopeTable, rope_table


def plan_rows_ref(
    given: Tensor, newest: Tensor, windows: Tensor, pages: Tensor, frequencies: Tensor, out: PlanBuffers
) -> None:
    """See `plan_rows`."""
    shape, plan = out.shape, out.head(len(given))
    position, row, flags = given[:, Column.POSITION], given[:, Column.REQUEST_ROW], given[:, Column.FLAGS]
    is_real = (flags & REAL) != 0
    plan.token_ids.copy_(torch.where((flags & RELAYED) != 0, newest[row], given[:, Column.TOKEN]))
    plan.positions.copy_(position)
    plan.request_rows.copy_(row)
    page, place = position // shape.page_size, position % shape.page_size
    window_id, page_id = windows[row, page], pages[row, page]
    has_window, has_page = is_real & (window_id > 0), is_real & (page_id > 0)
    plan.window_slots.copy_(torch.where(has_window, window_id * shape.page_size + place, -1))
    before = place - (shape.page_size - shape.snapshot_rows)
    keeps = has_window & (before >= 0) & (shape.snapshot_rows > 0)
    plan.snapshot_slots.copy_(torch.where(keeps, window_id * shape.snapshot_rows + before, -1))
    plan.token_slots.copy_(torch.where(has_page, page_id * shape.page_size + place, -1))
    plan.before.copy_(given[:, Column.OFFSET])
    _plan_draw(plan.draw, given)
    for table, rope in enumerate(plan.ropes):
        _turn(rope, position, frequencies[table], shape.amplitude)
    for ratio in shape.compressed:
        entry = plan.entries[ratio.ratio]
        _plan_entry(entry, ratio, position, row, is_real, torch.where(has_page, page_id, 0), shape.page_size)
        _turn(entry.rope, entry.first_tokens, frequencies[ratio.table], shape.amplitude)


def settle_rows_ref(given: Tensor, drawn: Tensor, is_finite: Tensor, newest: Tensor, ends: Tensor, out: Tensor) -> None:
    """See `settle_rows`. Only for the CPU: it looks at every row."""
    out[:, 0], out[:, 1] = drawn, is_finite
    is_run = False
    for place, (row, token) in enumerate(zip(given.tolist(), drawn.tolist(), strict=True)):
        is_run = is_run or row[Column.OFFSET] == 0
        if is_run and token != row[Column.NEXT_DRAFT]:
            is_run = False
            if row[Column.FLAGS] & REAL:
                newest[row[Column.REQUEST_ROW]] = token
                ends[row[Column.SEQUENCE]] = place


def _plan_draw(draw: DrawPlan, given: Tensor) -> None:
    draw.positions.copy_(given[:, Column.POSITION] + 1)
    draw.seeds.copy_(given[:, Column.SEED])
    draw.top_k.copy_(given[:, Column.TOP_K])
    values = given[:, Column.TEMPERATURE : Column.MIN_P + 1].contiguous().view(torch.float64)
    for own, column in zip((draw.temperature, draw.top_p, draw.min_p), values.unbind(1), strict=True):
        own.copy_(column)


def _plan_entry(
    entry: EntryPlan, shape: RatioShape, position: Tensor, row: Tensor, is_real: Tensor, page_id: Tensor, page_size: int
) -> None:
    block, a_page = position // shape.ratio, page_size // shape.ratio
    first = block * shape.ratio
    is_done = (page_id > 0) & (position - first == shape.ratio - 1)
    entry.slots.copy_(torch.where(is_done, page_id * a_page + block % a_page, -1))
    entry.ring_slots.copy_(torch.where(is_real, row * shape.ring_len + position % shape.ring_len, -1))
    entry.first_tokens.copy_(first)
    entry.rings.copy_(torch.where(is_real, row * shape.ring_len, -1))
    entry.ends.copy_(torch.where(is_done, torch.arange(len(row), device=row.device), -1))
    # Before the first block lies nothing: any row stands in, the compressor masks it.
    needed = (first[:, None] + torch.arange(-shape.reach, shape.ratio, device=first.device)).clamp(min=0)
    entry.sources.copy_(row[:, None] * shape.ring_len + needed % shape.ring_len)
    entry.is_first.copy_((first == 0)[:, None, None])


def _turn(out: RopeTable, position: Tensor, frequencies: Tensor, amplitude: float) -> None:
    table = rope_table(position, frequencies, amplitude)
    out.cos.copy_(table.cos)
    out.sin.copy_(table.sin)
