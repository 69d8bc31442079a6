"""Token dropping keeps what a device has room for, the highest scores first, and spares whole sequences."""

import numpy as np
import pytest
import torch
from torch import Tensor

from benthic.errors import ConfigError
from benthic.kernels.moe_route import moe_route
from benthic.models.trace import Trace
from benthic.train.dropping import DroppingConfig, TokenDropping, spared_rows
from benthic.train.expert_map import ExpertMap
from benthic.train.item import Item
from benthic.train.packing import Layout, pack
from benthic.train.routing_counts import count_routes

EXPERTS = ExpertMap({0: "score"}, num_experts=8, top_k=2, score="softmax", num_devices=4, max_devices=2)


def keep(logits: Tensor, spared: list[int] = (), fillers: int = 0, capacity: float = 1.0) -> Tensor:  # type: ignore[assignment]
    rows = len(logits)
    is_real, is_spared = torch.arange(rows) < rows - fillers, torch.zeros(rows, dtype=torch.bool)
    is_spared[list(spared)] = True
    routing = moe_route(logits, top_k=2, scale=1.0, score="softmax", normalize=False)
    dropping = TokenDropping(EXPERTS, DroppingConfig(enabled=True, capacity_factor=capacity), is_real, is_spared)
    return dropping(0, logits, routing)


def skewed(rows: int, seed: int = 0) -> Tensor:
    """Logits that favour the first device."""
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed)) + torch.tensor(
        [2.0, 2, 0, 0, 0, 0, 0, 0]
    )


def by_hand(logits: Tensor, room: int) -> list[list[bool]]:
    routing = moe_route(logits, top_k=2, scale=1.0, score="softmax", normalize=False)
    kept = torch.zeros(len(logits), 2, dtype=torch.bool)
    for device in range(4):
        picks = [(r, k) for r in range(len(logits)) for k in range(2) if routing.experts[r, k] // 2 == device]
        for r, k in sorted(picks, key=lambda pick: -routing.weights[pick].item())[:room]:
            kept[r, k] = True
    return kept.tolist()


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.5])
def test_each_device_keeps_its_room_of_picks_by_score(capacity: float) -> None:
    logits = skewed(40)
    room = int(40 * 2 * capacity / 4)
    kept = keep(logits, capacity=capacity)
    assert kept.tolist() == by_hand(logits, room)
    assert 0 < (~kept).sum() < kept.numel()


def test_nothing_is_dropped_where_there_is_room_for_all() -> None:
    assert keep(skewed(40), capacity=4.0).all()


def test_spared_rows_keep_all_and_take_room_before_the_others() -> None:
    logits = skewed(40)
    spared = [3, 4, 5, 30]
    kept, without = keep(logits, spared), keep(logits)
    assert not without[spared].all()
    assert kept[spared].all()
    assert kept.sum() == without.sum()
    everybody = keep(logits, list(range(40)))
    assert everybody.all()


def test_fillers_take_no_room_and_are_left_out() -> None:
    logits = skewed(40)
    padded = torch.cat([logits, skewed(10, seed=1)])
    kept = keep(padded, fillers=10)
    assert torch.equal(kept[:40], keep(logits)) and not kept[40:].any()


def test_dropped_picks_weigh_nothing_and_the_others_as_before() -> None:
    logits = skewed(40)
    routing = moe_route(logits, top_k=2, scale=1.0, score="softmax")
    trace = Trace(keep=lambda layer, logits, routing: keep(logits))
    thinned = trace.routed(0, logits, routing)
    kept = keep(logits)
    assert torch.equal(thinned.weights[kept], routing.weights[kept]) and not thinned.weights[~kept].any()
    assert torch.equal(trace.experts[0], routing.experts)


def test_the_share_of_dropped_picks_is_counted_over_real_rows() -> None:
    logits = skewed(50)
    is_real = torch.arange(50) < 40
    kept = keep(logits, fillers=10)
    trace = Trace(experts={0: moe_route(logits, top_k=2, scale=1.0, score="softmax").experts})
    counts = count_routes(trace, is_real, EXPERTS, {0: kept})
    assert counts.dropped_share().item() == pytest.approx((~kept[:40]).sum().item() / 80)


def test_about_the_wished_share_of_sequences_is_spared_by_their_tokens_alone() -> None:
    rng = np.random.default_rng(0)
    items = [Item(rng.integers(0, 99, 8), [1.0] * 8) for _ in range(500)]
    layout = Layout(4000, 600, 64)
    rows = spared_rows(pack(items, layout), 0.1).reshape(-1, 8)
    assert (rows == rows[:, :1]).all()
    assert 0.06 < rows[:, 0].mean() < 0.14
    turned = spared_rows(pack(items[::-1], layout), 0.1).reshape(-1, 8)
    assert np.array_equal(turned[::-1], rows)
    assert not spared_rows(pack(items, layout), 0.0).any() and spared_rows(pack(items, layout), 1.0).all()


@pytest.mark.parametrize("change", [{"capacity_factor": 0.0}, {"spared_share": 1.1}])
def test_impossible_settings_of_dropping_are_refused_by_name(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"dropping\.{next(iter(change))} \({next(iter(change.values()))}\)"):
        DroppingConfig(**change)  # type: ignore[arg-type]
