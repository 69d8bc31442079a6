"""Balance losses have the values that the formulas give by hand, and pull towards an even load."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benthic.errors import ConfigError
from benthic.models.released import KNOWN
from benthic.models.trace import Trace
from benthic.train.balance import BalanceConfig, bias_rate
from benthic.train.balance_losses import BalanceLosses, Sequences, balance_losses, wants_losses
from benthic.train.expert_map import ExpertMap, map_experts

# Four experts on two devices, two a row; rows may go to both devices.
V2 = ExpertMap({1: "score"}, num_experts=4, top_k=2, score="softmax", num_devices=2, max_devices=2)
V3 = replace(V2, routing={1: "bias"}, score="sigmoid", num_devices=1, max_devices=1)


def losses(
    scores: Tensor, chosen: list[list[int]], sequences: list[int], experts: ExpertMap, num_tokens: int | None = None
) -> BalanceLosses:
    """Of one layer whose scores are those given; sequence -1 is a filler."""
    logits = scores.log() if experts.score == "softmax" else torch.logit(scores)
    of_row = torch.tensor(sequences)
    is_real = of_row >= 0
    trace = Trace(router_logits={1: logits}, experts={1: torch.tensor(chosen)})
    rows = Sequences(of_row.where(is_real, of_row.max() + 1), int(of_row.max()) + 2, is_real)
    return balance_losses(trace, rows, experts, torch.tensor(num_tokens or int(is_real.sum())))


def test_v2_losses_of_one_sequence_are_those_computed_by_hand() -> None:
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.5, 0.1, 0.3, 0.1]])
    found = losses(scores, [[0, 1], [0, 2]], [0, 0], V2)
    # f = E / (K T) * counts = 4 / 4 * (2, 1, 1, 0); P = (0.45, 0.2, 0.25, 0.1)
    assert found.expert.item() == pytest.approx(2 * 0.45 + 1 * 0.2 + 1 * 0.25)
    # f' = (1.5, 0.5); P' = (0.65, 0.35)
    assert found.device.item() == pytest.approx(1.5 * 0.65 + 0.5 * 0.35)
    # f'' = D / (M T) * (2 tokens, 1 token) = 2 / 4 * (2, 1)
    assert found.communication.item() == pytest.approx(1.0 * 0.65 + 0.5 * 0.35)
    assert found.sequence.item() == 0
    weighted = found.weighted(BalanceConfig()).item()
    assert weighted == pytest.approx(0.003 * 1.35 + 0.05 * 1.15 + 0.02 * 0.825)


def test_the_loss_of_v3_counts_what_the_scores_alone_would_choose() -> None:
    scores = torch.tensor([[0.8, 0.4, 0.2, 0.6], [0.9, 0.3, 0.6, 0.2]])
    # Sums are 2, so s = scores / 2. The scores alone choose (0, 3) and (0, 2), whatever the bias made of it.
    found = losses(scores, [[1, 2], [1, 2]], [0, 0], V3)
    # f = 4 / 4 * (2, 0, 1, 1); P = (0.425, 0.175, 0.2, 0.2)
    assert found.sequence.item() == pytest.approx(2 * 0.425 + 0.2 + 0.2)
    assert (found.expert, found.device, found.communication) == (0, 0, 0)
    assert found.weighted(BalanceConfig()).item() == pytest.approx(1e-4 * 1.25)


def test_all_losses_of_an_even_load_are_one() -> None:
    even, chosen = torch.full((4, 4), 0.25), [[0, 2], [1, 3], [0, 3], [1, 2]]
    found = losses(even, chosen, [0] * 4, V2)
    assert [found.expert.item(), found.device.item(), found.communication.item()] == pytest.approx([1, 1, 1])


def test_sequences_count_apart_by_their_length_and_fillers_not_at_all() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(9, 4, generator=generator).softmax(-1)
    chosen = torch.rand(9, 4, generator=generator).topk(2).indices.tolist()
    packed = losses(scores, chosen, [0, 0, 0, 1, 1, 1, 1, 1, -1], V2)
    first, second = losses(scores[:3], chosen[:3], [0] * 3, V2), losses(scores[3:8], chosen[3:8], [0] * 5, V2)
    for whole, one, other in zip(packed, first, second, strict=True):
        assert whole.item() == pytest.approx((3 * one.item() + 5 * other.item()) / 8)
    # Cut into two batches of one step, each counts its share.
    cut = [losses(scores[:3], chosen[:3], [0] * 3, V2, 8), losses(scores[3:8], chosen[3:8], [0] * 5, V2, 8)]
    assert packed.expert.item() == pytest.approx(cut[0].expert.item() + cut[1].expert.item())


def test_descending_the_gradient_takes_score_from_the_busy_expert() -> None:
    logits = torch.zeros(4, 4, requires_grad=True)
    trace = Trace(router_logits={1: logits}, experts={1: torch.tensor([[0, 1], [0, 2], [0, 3], [0, 1]])})
    sequences = Sequences(torch.zeros(4, dtype=torch.int64), 1, torch.ones(4, dtype=torch.bool))
    balance_losses(trace, sequences, V2, torch.tensor(4)).expert.backward()
    assert logits.grad is not None
    assert (logits.grad[:, 0] > 0).all() and (logits.grad[:, 3] < 0).all()


def test_gradients_are_the_numeric_ones() -> None:
    sequences = Sequences(torch.tensor([0, 0, 1]), 2, torch.ones(3, dtype=torch.bool))
    chosen = torch.tensor([[0, 1], [0, 2], [3, 1]])

    def total(logits: Tensor) -> Tensor:
        found = balance_losses(Trace(router_logits={1: logits}, experts={1: chosen}), sequences, V2, torch.tensor(3))
        return found.expert + 2 * found.device + 3 * found.communication

    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.autograd.gradcheck(total, [logits])


def test_which_losses_a_model_takes_follows_from_its_gates() -> None:
    none = BalanceConfig(sequence_weight=0, expert_weight=0, device_weight=0, communication_weight=0)
    assert not wants_losses(V2, none) and not wants_losses(V3, none)
    assert wants_losses(V2, replace(none, device_weight=0.1)) and not wants_losses(V3, replace(none, device_weight=0.1))
    assert wants_losses(V3, replace(none, sequence_weight=1.0)) and not wants_losses(
        V2, replace(none, sequence_weight=1.0)
    )


def test_devices_are_those_of_the_gate_or_as_many_as_asked_for() -> None:
    v2 = KNOWN["deepseek-v2"]
    experts = map_experts(v2)
    assert (experts.num_devices, experts.max_devices, experts.experts_per_device) == (8, 3, 20)
    assert sorted(experts.routing) == list(range(1, 60)) and set(experts.routing.values()) == {"score"}
    assert (map_experts(v2, 16).max_devices, map_experts(v2, 4).max_devices) == (6, 3)
    v4 = map_experts(KNOWN["deepseek-v4-flash"])
    assert v4.num_devices == 1 and [v4.routing[n] for n in (0, 2, 3, 43)] == ["hash", "hash", "bias", "bias"]
    with pytest.raises(ConfigError, match=r"num_devices \(7\) must divide the number of experts \(160\)"):
        map_experts(v2, 7)


def test_a_frozen_bias_has_the_rate_zero_and_the_last_part_of_a_run_the_late_one() -> None:
    config = BalanceConfig(rate=0.4, late_rate=0.1, late_share=0.25)
    assert [bias_rate(config, step, 8) for step in (0, 5, 6, 7)] == [0.4, 0.4, 0.1, 0.1]
    assert bias_rate(replace(config, update_bias=False), 0, 8) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"device_weight": -0.1},
        {"rate": float("nan")},
        {"expert_weight": float("inf")},
        {"late_share": 1.5},
        {"num_devices": -1},
    ],
)
def test_impossible_balance_settings_are_refused_by_name(change: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=rf"balance\.{next(iter(change))} \({next(iter(change.values()))}\)"):
        BalanceConfig(**change)  # type: ignore[arg-type]
