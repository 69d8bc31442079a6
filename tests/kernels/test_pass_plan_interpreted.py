"""The kernels of a pass's plan and of scattered rows against their references, in Triton's interpreter."""

import os

import pytest
import torch

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="only in Triton's interpreter")


def test_a_plan_equals_its_reference_bit_for_bit_but_for_the_turns() -> None:
    from benthic.kernels.pass_plan.cases import plan_cases
    from benthic.kernels.pass_plan.kernel import plan_rows_triton
    from benthic.kernels.pass_plan.layout import PlanBuffers
    from benthic.kernels.pass_plan.reference import plan_rows_ref

    for case in plan_cases():
        mine, theirs = (PlanBuffers(case.shape, len(case.given), torch.device("cpu")) for _ in range(2))
        plan_rows_triton(case.given, case.newest, case.windows, case.pages, case.frequencies, mine)
        plan_rows_ref(case.given, case.newest, case.windows, case.pages, case.frequencies, theirs)
        assert torch.equal(mine.words, theirs.words)
        assert torch.equal(mine.flags, theirs.flags)
        # The interpreter's cosines are numpy's.
        torch.testing.assert_close(mine.floats, theirs.floats, rtol=1e-5, atol=1e-5)


def test_runs_settle_as_in_the_reference() -> None:
    from benthic.kernels.pass_plan.cases import settle_cases
    from benthic.kernels.pass_plan.kernel import settle_rows_triton
    from benthic.kernels.pass_plan.reference import settle_rows_ref

    for given, drawn, is_finite in settle_cases():
        found = []
        for settle in (settle_rows_triton, settle_rows_ref):
            newest, ends = torch.full((2, 64), -5).unbind(0)
            out = torch.zeros(len(given), 2, dtype=torch.int64)
            settle(given, drawn, is_finite, newest, ends, out)
            found.append((newest, ends, out))
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("width", [3, 584, 1500])
def test_rows_scatter_as_in_the_reference(width: int) -> None:
    from benthic.kernels.scatter_rows.kernel import scatter_rows_triton
    from benthic.kernels.scatter_rows.reference import scatter_rows_ref

    slots = torch.tensor([4, -1, 0, 9, -1])
    rows = torch.randint(0, 255, (5, width + 2), dtype=torch.uint8)[:, :width]
    mine, theirs = torch.zeros(2, 10, width, dtype=torch.uint8).unbind(0)
    scatter_rows_triton(mine, slots, rows)
    scatter_rows_ref(theirs, slots, rows)
    assert torch.equal(mine, theirs) and int(mine[4, 0]) == int(rows[0, 0])
