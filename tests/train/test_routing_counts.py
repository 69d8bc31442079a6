"""Routing statistics say where rows went, and device-limited gates never touch more devices than they may."""

import pytest
import torch

from benthic.kernels.moe_route import GroupLimit, moe_route
from benthic.models.trace import Trace
from benthic.train.expert_map import ExpertMap
from benthic.train.routing_counts import RoutingCounts, count_routes, describe_counts

EXPERTS = ExpertMap({1: "score", 4: "score"}, num_experts=6, top_k=2, score="softmax", num_devices=3, max_devices=2)


def two_layers() -> RoutingCounts:
    """Three real rows and a filler in two layers; layers between have no experts."""
    chosen = {1: torch.tensor([[0, 1], [0, 5], [0, 2], [4, 5]]), 4: torch.tensor([[2, 3], [2, 3], [3, 2], [4, 5]])}
    return count_routes(Trace(experts=chosen), torch.tensor([True, True, True, False]), EXPERTS, {})


def test_loads_devices_and_ratios_of_a_pass_are_those_counted_by_hand() -> None:
    counts = two_layers()
    assert counts.loads.tolist() == [[3, 1, 1, 0, 0, 1], [0, 0, 3, 3, 0, 0]]
    assert counts.touched.tolist() == [1 + 2 + 2, 3] and counts.most.tolist() == [2, 1]
    assert counts.max_over_mean().tolist() == [3.0, 3.0]
    assert counts.summary().tolist() == pytest.approx([3.0, (5 / 3 + 1) / 2, 2.0, 0.0])


def test_counts_of_passes_add_up() -> None:
    once, twice = two_layers(), two_layers().plus(two_layers())
    assert torch.equal(twice.loads, 2 * once.loads) and torch.equal(twice.most, once.most)
    assert torch.equal(twice.mean_devices(), once.mean_devices())


def test_the_description_names_layers_by_their_numbers() -> None:
    described = describe_counts(two_layers(), EXPERTS)
    assert list(described) == ["1", "4"]
    assert described["4"] == {
        "max_over_mean": 3.0, "devices": 1.0, "most_devices": 1, "dropped": 0.0, "load": [0.0, 0.0, 3.0, 3.0, 0.0, 0.0],
    }  # fmt: skip


def test_a_model_without_routed_layers_has_empty_counts() -> None:
    counts = count_routes(Trace(), torch.ones(3, dtype=torch.bool), EXPERTS, {})
    assert counts.loads.shape == (0, 6) and counts.summary().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_device_limited_routing_never_touches_more_than_m_devices(kept: int) -> None:
    """As V2 routes: eight devices, six experts a token, the `kept` best devices."""
    logits = 3 * torch.randn(5000, 64, generator=torch.Generator().manual_seed(kept))
    experts = ExpertMap({0: "score"}, num_experts=64, top_k=6, score="softmax", num_devices=8, max_devices=kept)
    real = torch.ones(5000, dtype=torch.bool)
    most = {}
    for name, limit in (("free", None), ("limited", GroupLimit(8, kept, 1))):
        chosen = moe_route(logits, top_k=6, scale=16.0, score="softmax", normalize=False, limit=limit).experts
        most[name] = count_routes(Trace(experts={0: chosen}), real, experts, {}).most.item()
    assert most == {"free": 6, "limited": kept}
