"""moe_permute, moe_dispatch, moe_combine: every pick once, groups high enough, ordered sums."""

import pytest
import torch

from benthic.kernels.moe_permute import Permutation, moe_combine, moe_dispatch, moe_permute
from benthic.kernels.moe_permute.cases import KINDS, Kind, picks
from benthic.kernels.moe_permute.reference import moe_permute_ref
from tests.kernels import laws

EXPERTS = 8


def check(experts: torch.Tensor, plan: Permutation, min_rows: int) -> None:
    """The contract, pick by pick."""
    ends = plan.group_ends.tolist()
    starts = [0, *ends[:-1]]
    assert ends[-1] == len(plan.source) == len(plan.pick) == len(plan.filler)
    for row, chosen in enumerate(experts.tolist()):
        for k, expert in enumerate(chosen):
            slot = int(plan.slot[row, k])
            assert starts[expert] <= slot < ends[expert]
            assert plan.source[slot] == row
            assert plan.pick[slot] == row * experts.shape[1] + k
            assert not plan.filler[slot]
    assert int((~plan.filler).sum()) == experts.numel()
    assert (plan.source[plan.filler] == 0).all()
    for expert in range(EXPERTS):
        own = plan.pick[starts[expert] : ends[expert]][~plan.filler[starts[expert] : ends[expert]]]
        assert torch.equal(own, own.sort().values), "stable order"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("min_rows", [0, 1, 2, 5])
def test_every_pick_has_one_slot_in_its_experts_group(kind: Kind, min_rows: int) -> None:
    experts = picks(kind)
    for impl in ("auto", "reference"):
        plan = moe_permute(experts, EXPERTS, min_rows, impl=impl)
        check(experts, plan, min_rows)
        sizes = torch.diff(plan.group_ends, prepend=plan.group_ends.new_zeros(1))
        hit = torch.zeros(EXPERTS, dtype=torch.bool)
        hit[experts.flatten()] = True
        assert (sizes[hit] >= min_rows).all()
        assert (sizes[~hit] == 0).all(), "an expert without picks has no rows"


@pytest.mark.parametrize("kind", KINDS)
def test_the_numba_kernel_plans_what_the_reference_plans(kind: Kind) -> None:
    ours, reference = (moe_permute(picks_of(kind), EXPERTS, 3, impl=impl) for impl in ("cpu", "reference"))
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


def picks_of(kind: Kind) -> torch.Tensor:
    torch.manual_seed(5)
    return picks(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fixed_number_of_slots_leaves_the_excess_to_the_last_group(kind: Kind) -> None:
    experts = picks(kind)
    plan = moe_permute_ref(experts, EXPERTS, 2, experts.numel() + EXPERTS)
    check(experts, plan, 2)
    assert len(plan.source) == experts.numel() + EXPERTS


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_combine_adds_in_the_order_of_choice(impl: str) -> None:
    slot = torch.tensor([[2, 0, 1]])
    y = torch.tensor([[1.0], [-1e8], [1e8]])
    # (1e8 + 1) - 1e8 is 0 in float32; another order would give 1.
    assert moe_combine(y, slot, impl=impl).item() == 0.0
    assert moe_combine(y, torch.tensor([[2, 1, 0]]), impl=impl).item() == 1.0


def test_dispatch_then_combine_is_each_row_times_the_sum_of_its_weights() -> None:
    experts, x = picks("random"), torch.randn(11, 6)
    plan, weights = moe_permute(experts, EXPERTS, 2), torch.rand(11, 3)
    torch.testing.assert_close(moe_combine(moe_dispatch(x, plan), plan, weights), x * weights.sum(1, keepdim=True))


@pytest.mark.parametrize("min_rows", [0, 3])
def test_gradients_are_the_numeric_ones(min_rows: int) -> None:
    plan = moe_permute(picks("random", rows=4), EXPERTS, min_rows)
    given = {
        "x": torch.randn(4, 3, dtype=torch.float64),
        "y": torch.randn(len(plan.source), 3, dtype=torch.float64),
        "weights": torch.rand(4, 3, dtype=torch.float64),
    }
    # What stands in fillers is read by nobody, so dispatch takes no gradient from them.
    real = (~plan.filler).double()[:, None]
    laws.assert_gradients(lambda x, **_: moe_dispatch(x, plan) * real, given | {"y": None, "weights": None})
    for slot in (plan, plan.slot):
        laws.assert_gradients(lambda y, weights, slot=slot, **_: moe_combine(y, slot, weights), given | {"x": None})
        laws.assert_gradients(lambda y, slot=slot, **_: moe_combine(y, slot), given | {"x": None, "weights": None})


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_row_has_the_same_bits_in_any_batch(impl: str) -> None:
    y = torch.randn(100, 17)
    given = {"slot": torch.randint(0, 100, (laws.ALL_ROWS, 3)), "weights": torch.rand(laws.ALL_ROWS, 3)}
    laws.assert_rows_ignore_neighbours(
        lambda slot, weights: moe_combine(y, slot, weights, impl=impl), given, ("slot", "weights")
    )
