"""route_rows: the picks of moe_route, and every expert's rows in their order."""

from typing import Any

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.moe_route import ExpertRows, GroupLimit, moe_route, route_rows
from benthic.kernels.moe_route.cases import inputs

E = 16


def check(found: ExpertRows, num_live: int) -> None:
    """Everything that a walk over the picks of live rows says."""
    rows, top_k = found.experts.shape
    assert all(part.dtype == torch.int32 for name, part in found._asdict().items() if name != "weights")
    wanted: list[list[int]] = [[] for _ in range(E)]
    for row in range(num_live):
        for k in range(top_k):
            wanted[int(found.experts[row, k])].append(row * top_k + k)
    order, offsets = found.order.tolist(), found.offsets.tolist()
    assert [order[offsets[e] : offsets[e + 1]] for e in range(E)] == wanted
    assert found.counts.tolist() == [len(picks) for picks in wanted]
    assert order[offsets[-1] :] == [-1] * ((rows - num_live) * top_k)
    for row in range(rows):
        for k in range(top_k):
            slot = int(found.slots[row, k])
            assert slot == -1 if row >= num_live else order[slot] == row * top_k + k
    assert not found.weights[num_live:].any()


@pytest.mark.parametrize("rows", [0, 1, 7, 133])
@pytest.mark.parametrize("tied", [False, True])
def test_every_expert_has_its_picks_in_the_order_of_rows(rows: int, tied: bool) -> None:
    given = inputs(rows, tied=tied)
    found, routing = route_rows(**given), moe_route(**given)
    check(found, rows)
    assert torch.equal(found.experts, routing.experts.int())
    assert torch.equal(found.weights, routing.weights)


@pytest.mark.parametrize("live", [0, 1, 20, 41])
def test_rows_that_are_not_live_go_nowhere(live: int) -> None:
    given = inputs(41)
    found = route_rows(**given, num_rows=torch.tensor([live], dtype=torch.int32))
    check(found, live)
    alone = route_rows(**(given | {"logits": given["logits"][:live]}))
    for name in ("experts", "weights", "slots"):
        assert torch.equal(getattr(found, name)[:live], getattr(alone, name)), name
    assert torch.equal(found.offsets, alone.offsets)


@pytest.mark.parametrize("kind", ["replay", "hash", "groups"])
def test_every_way_to_choose_is_that_of_moe_route(kind: str) -> None:
    given: dict[str, Any] = inputs(41)
    experts = torch.stack([torch.randperm(E)[:3] for _ in range(41)])
    token_ids = torch.randint(0, 41, (41,))
    ways: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "replay": ({"experts": experts}, {"experts": experts}),
        "hash": ({"table": experts, "token_ids": token_ids}, {"experts": experts[token_ids]}),
        "groups": ({"limit": GroupLimit(4, 2, 2)}, {"limit": GroupLimit(4, 2, 2)}),
    }
    ours, theirs = ways[kind]
    found, routing = route_rows(**given, **ours), moe_route(**given, **theirs)
    check(found, 41)
    assert torch.equal(found.experts, routing.experts.int())
    assert torch.equal(found.weights, routing.weights)


def test_two_ways_to_choose_at_once_are_refused() -> None:
    with pytest.raises(KernelInputError, match="hash routing takes a table and token ids"):
        route_rows(**inputs(3), table=torch.zeros(5, 3, dtype=torch.int64))
    with pytest.raises(KernelInputError, match=r"they must be \[V, 3\] and \[3\]"):
        route_rows(**inputs(3), table=torch.zeros(5, 2, dtype=torch.int64), token_ids=torch.zeros(3, dtype=torch.int64))
