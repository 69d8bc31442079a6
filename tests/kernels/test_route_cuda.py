"""Routing on CUDA: the CPU's choice and weights to the bit, whatever stands beside a row, and lists in its order."""

from typing import Any

import pytest
import torch

from benthic.kernels.moe_route import GroupLimit, Score, moe_route, route_rows
from benthic.kernels.moe_route.rows import expert_rows_ref

pytestmark = pytest.mark.gpu

GATES: tuple[tuple[int, int, Score, GroupLimit | None], ...] = (
    (256, 6, "sqrtsoftplus", None), (384, 6, "sqrtsoftplus", None), (256, 8, "sigmoid", GroupLimit(8, 4, 2)),
    (160, 6, "softmax", GroupLimit(8, 3, 1)), (64, 6, "softmax", None), (8, 2, "sqrtsoftplus", None),
)  # fmt: skip
COUNTS = (1, 7, 64, 133, 300)


def gate(case: tuple[int, int, Score, GroupLimit | None], rows: int, kind: str) -> dict[str, Any]:
    """`kind`: "random", "tied" (whole numbers, no bias) or "extreme" (rows whose scores underflow)."""
    num_experts, top_k, score, limit = case
    logits = 3 * torch.randn(rows, num_experts)
    if kind == "tied":
        logits = logits.round()
    if kind == "extreme":
        logits += torch.tensor([-50.0, -100.0, -1e4, 30.0])[torch.arange(rows) % 4][:, None]
    bias = 0.1 * torch.randn(num_experts) if kind == "random" and score != "softmax" else None
    return {
        "logits": logits, "top_k": top_k, "scale": 1.5, "score": score, "bias": bias, "limit": limit,
        "floor": 1e-20 if score == "sigmoid" else 0.0,
    }  # fmt: skip


def on_cuda(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in given.items()}


@pytest.mark.parametrize("kind", ["random", "tied", "extreme"])
@pytest.mark.parametrize("case", GATES, ids=str)
def test_choice_and_weights_are_the_cpus_to_the_bit(case: tuple[int, int, Score, GroupLimit | None], kind: str) -> None:
    given = gate(case, 4000, kind)
    here, there = moe_route(**given), moe_route(**on_cuda(given))
    assert torch.equal(there.experts.cpu(), here.experts)
    assert torch.equal(there.weights.cpu(), here.weights)


@pytest.mark.parametrize("case", GATES, ids=str)
def test_a_row_ignores_its_neighbours_and_the_lists_are_the_references(
    case: tuple[int, int, Score, GroupLimit | None],
) -> None:
    given = on_cuda(gate(case, 8192, "random"))
    whole = moe_route(**given)
    for count in COUNTS:
        start = (7919 * count) % (8192 - count)
        found = route_rows(**(given | {"logits": given["logits"][start : start + count]}))
        assert torch.equal(found.experts, whole.experts[start : start + count].int())
        assert torch.equal(found.weights, whole.weights[start : start + count])
    for live in (0, 1, 5000, 8192):
        num_rows = torch.tensor([live], device="cuda", dtype=torch.int32)
        found, wanted = route_rows(**given, num_rows=num_rows), expert_rows_ref(whole, case[0], num_rows)
        for name, part in found._asdict().items():
            assert torch.equal(part, getattr(wanted, name)), (live, name)


def test_tables_and_replay_weigh_as_the_choice_does() -> None:
    given = on_cuda(gate(GATES[0], 500, "random"))
    whole = moe_route(**given)
    ids = torch.randperm(500, device="cuda")
    table = torch.empty_like(whole.experts)
    table[ids] = whole.experts
    for way in ({"experts": whole.experts}, {"table": table, "token_ids": ids}):
        found = route_rows(**given, **way)
        assert torch.equal(found.experts, whole.experts.int())
        assert torch.equal(found.weights, whole.weights)


def test_a_captured_routing_follows_its_inputs() -> None:
    given = on_cuda(gate(GATES[0], 64, "random"))
    live = torch.tensor([64], device="cuda", dtype=torch.int32)
    route_rows(**given, num_rows=live)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = route_rows(**given, num_rows=live)
    given["logits"].copy_(torch.randn_like(given["logits"]))
    live.fill_(33)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, route_rows(**given, num_rows=live), strict=True))
