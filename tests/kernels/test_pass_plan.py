"""The kernels of a pass's plan and of scattered rows on a GPU, against their references."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.pass_plan import Column, PlanBuffers, plan_rows, settle_rows
from benthic.kernels.pass_plan.cases import V4, PlanCase, plan_cases, settle_cases
from benthic.kernels.pass_plan.reference import settle_rows_ref
from benthic.kernels.rope import rope_table
from benthic.kernels.scatter_rows import scatter_rows

CUDA = torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("case", list(plan_cases(num_pages=8192)), ids=lambda case: f"{len(case.given)} rows")
def test_a_plan_on_cuda_equals_its_reference_there(case: PlanCase) -> None:
    _, *arguments = (argument if argument is case.shape else argument.to(CUDA) for argument in case)
    mine, theirs = (PlanBuffers(case.shape, len(case.given), CUDA) for _ in range(2))
    plan_rows(*arguments, mine)
    plan_rows(*arguments, theirs, impl="reference")
    assert torch.equal(mine.words, theirs.words) and torch.equal(mine.flags, theirs.flags)
    assert torch.equal(mine.floats, theirs.floats)


@pytest.mark.gpu
def test_turns_of_a_plan_are_those_of_a_rope_table_at_every_position() -> None:
    positions = torch.arange(0, 1 << 20, 61, device=CUDA)
    frequencies = 10000.0 ** (-torch.arange(32, device=CUDA) / 32)[None].expand(2, -1).contiguous()
    table = torch.zeros(1, 8192, dtype=torch.int64, device=CUDA)
    given = torch.zeros(len(positions), len(Column), dtype=torch.int64, device=CUDA)
    given[:, Column.POSITION] = positions
    buffers = PlanBuffers(V4, len(positions), CUDA)
    plan_rows(given, table[0], table, table, frequencies, buffers)
    wanted = rope_table(positions, frequencies[0])
    found = buffers.head(len(positions)).ropes[0]
    assert torch.equal(found.cos, wanted.cos) and torch.equal(found.sin, wanted.sin)


@pytest.mark.gpu
def test_runs_settle_on_cuda_as_in_the_reference() -> None:
    for given, drawn, is_finite in settle_cases():
        here = [torch.full((64,), -5), torch.full((64,), -5), torch.zeros(len(given), 2, dtype=torch.int64)]
        there = [tensor.to(CUDA) for tensor in here]
        settle_rows_ref(given, drawn, is_finite, *here)
        settle_rows(given.to(CUDA), drawn.to(CUDA), is_finite.to(CUDA), *there)
        assert all(torch.equal(mine.cpu(), wanted) for mine, wanted in zip(there, here, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", [1, 584, 2304])
def test_rows_scatter_on_cuda_and_leave_the_others(dtype: torch.dtype, width: int) -> None:
    slots = torch.tensor([4, -1, 0, 9, -1], device=CUDA)
    rows = torch.randint(0, 255, (5, width + 2), device=CUDA).to(dtype)[:, :width]
    mine, theirs = torch.full((2, 10, width), 3, device=CUDA).to(dtype).unbind(0)
    scatter_rows(mine, slots, rows)
    theirs[[4, 0, 9]] = rows[[0, 2, 3]]
    assert torch.equal(mine, theirs)


def test_runs_end_at_the_first_wrong_draft() -> None:
    given = torch.tensor(
        [
            [0, 9, 3, 1, 0, 5, *[0] * 5, 0, 2],
            [5, 10, 3, 1, 1, 6, *[0] * 5, 0, 2],
            [6, 11, 3, 1, 2, -1, *[0] * 5, 0, 2],
            [8, 4, 1, 1, 0, -1, *[0] * 5, 1, 2],
        ]
    )
    newest, ends = torch.zeros(5, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    out = torch.zeros(4, 2, dtype=torch.int64)
    fine = torch.tensor([True, True, False, True])
    for drawn, last, row in (([5, 6, 7, 2], 7, 2), ([5, 4, 6, 2], 4, 1), ([4, 6, 7, 2], 4, 0)):
        settle_rows(given, torch.tensor(drawn), fine, newest, ends, out)
        assert newest.tolist() == [0, 2, 0, last, 0] and ends.tolist() == [row, 3]
        assert out.tolist() == [[token, int(good)] for token, good in zip(drawn, fine.tolist(), strict=True)]


def test_rows_of_other_shapes_are_refused() -> None:
    case = next(plan_cases())
    buffers = PlanBuffers(case.shape, 1, torch.device("cpu"))
    with pytest.raises(KernelInputError, match=r"int64 \[R, 13\]"):
        plan_rows(case.given[:, :7], *case[2:], buffers)
    with pytest.raises(KernelInputError, match="frequencies"):
        plan_rows(*case[1:5], case.frequencies[:, :3], buffers)
    target, slots = torch.zeros(4, 3), torch.tensor([0, -1])
    with pytest.raises(KernelInputError, match="rows"):
        scatter_rows(target, slots, torch.zeros(2, 4))
    scatter_rows(target, slots, torch.ones(2, 3))
    assert target.sum() == 3
