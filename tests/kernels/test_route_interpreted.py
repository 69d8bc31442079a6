"""Routing by Triton on a CPU, in Triton's interpreter: choice, weights, lists, ties, groups and what is beside NaN."""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.moe_route.kernel import moe_route_triton, route_rows_triton  # noqa: E402
from benthic.kernels.moe_route.reference import GroupLimit, Score, moe_route_ref  # noqa: E402
from benthic.kernels.moe_route.rows import expert_rows_ref  # noqa: E402

SCORES: tuple[Score, ...] = ("sqrtsoftplus", "sigmoid", "softmax")
CASES = (
    (24, None, "sqrtsoftplus", True), (20, GroupLimit(4, 2, 2), "sigmoid", False), (20, None, "softmax", False),
    (16, GroupLimit(4, 2, 1), "sqrtsoftplus", True),
)  # fmt: skip


@pytest.mark.parametrize(("num_experts", "limit", "score", "tied"), CASES, ids=str)
def test_experts_are_the_references_and_weights_near(
    num_experts: int, limit: GroupLimit | None, score: Score, tied: bool
) -> None:
    logits = 2 * torch.randn(5, num_experts)
    logits[1] -= 100.0
    logits, bias = (logits.round(), None) if tied else (logits, 0.1 * torch.randn(num_experts))
    arguments = (3, 1.5, score, True, 0.0, limit)
    found, wanted = (route(logits, bias, None, *arguments) for route in (moe_route_triton, moe_route_ref))
    assert torch.equal(found.experts, wanted.experts)
    torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-6, atol=1e-6)
    num_rows = torch.tensor([3], dtype=torch.int32)
    rows = route_rows_triton(logits, bias, None, None, None, num_rows, *arguments)
    assert all(torch.equal(a, b) for a, b in zip(rows, expert_rows_ref(found, num_experts, num_rows), strict=True))


@pytest.mark.parametrize("score", SCORES)
def test_given_experts_and_those_of_a_table_have_the_references_weights(score: Score) -> None:
    logits = torch.randn(4, 16)
    table = torch.stack([torch.randperm(16)[:3] for _ in range(4)])
    token_ids = torch.randint(0, 4, (4,))
    arguments = (3, 1.5, score, False, 0.0, None)
    for given, hashed in (((table, None, None), table), ((None, table, token_ids), table[token_ids])):
        found = route_rows_triton(logits, None, *given, None, *arguments)
        wanted = moe_route_ref(logits, None, hashed, *arguments)
        assert torch.equal(found.experts, wanted.experts.int())
        torch.testing.assert_close(found.weights, wanted.weights, rtol=1e-6, atol=1e-7)


def test_a_row_of_nan_goes_to_experts_that_exist() -> None:
    logits = torch.randn(3, 16)
    logits[1] = float("nan")
    rows = route_rows_triton(logits, None, None, None, None, None, 3, 1.0, "sigmoid", True, 0.0, None)
    assert ((rows.experts >= 0) & (rows.experts < 16)).all()
    assert int(rows.counts.sum()) == int(rows.offsets[-1]) == 9


@pytest.mark.parametrize("live", [None, 0, 1])
@pytest.mark.parametrize("experts", [None, (9, 2, 5), (7, 7, 1)], ids=str)
def test_a_row_alone_lists_its_picks_itself(experts: tuple[int, ...] | None, live: int | None) -> None:
    logits, given = torch.randn(1, 20), None if experts is None else torch.tensor([experts])
    num_rows = None if live is None else torch.tensor([live], dtype=torch.int32)
    arguments = (3, 1.5, "sqrtsoftplus", True, 0.0, None)
    rows = route_rows_triton(logits, None, given, None, None, num_rows, *arguments)
    routing = moe_route_triton(logits, None, given, *arguments)
    assert all(torch.equal(a, b) for a, b in zip(rows, expert_rows_ref(routing, 20, num_rows), strict=True))
