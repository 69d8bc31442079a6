"""moe_route within groups: the gates of V2 and V3, which experts stay eligible, and what is refused."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.moe_route import GroupLimit, Routing, moe_route
from tests.kernels import laws

V2 = GroupLimit(groups=4, kept=2, best=1)
V3 = GroupLimit(groups=4, kept=2, best=2)
IMPLS = ("auto", "reference")


def rows(count: int, *, tied: bool = False, seed: int = 0) -> Tensor:
    logits = 2 * torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))
    return logits.round() if tied else logits


def v2(logits: Tensor, impl: str = "auto") -> Routing:
    return moe_route(logits, top_k=3, scale=16.0, score="softmax", normalize=False, limit=V2, impl=impl)


def v3(logits: Tensor, bias: Tensor | None = None, impl: str = "auto") -> Routing:
    return moe_route(logits, top_k=3, scale=2.5, score="sigmoid", bias=bias, floor=1e-20, limit=V3, impl=impl)


def by_hand(ranked: list[float], limit: GroupLimit, top_k: int) -> list[int]:
    size = len(ranked) // limit.groups
    groups = [range(g * size, (g + 1) * size) for g in range(limit.groups)]
    worth = [sum(sorted((ranked[e] for e in group), reverse=True)[: limit.best]) for group in groups]
    kept = sorted(range(limit.groups), key=lambda g: (-worth[g], g))[: limit.kept]
    return sorted((e for g in kept for e in groups[g]), key=lambda e: (-ranked[e], e))[:top_k]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("tied", [False, True])
def test_v2_and_v3_choose_as_the_rule_written_out_says_with_ties_to_the_lower_group_and_expert(
    impl: str, tied: bool
) -> None:
    logits = rows(400, tied=tied)
    bias = torch.linspace(-1.5, 1.5, 16).round() if tied else torch.linspace(-0.3, 0.3, 16)
    # Rank in float32, as the kernel does: in float64 other scores would tie.
    softmax, sigmoid = logits.softmax(-1), torch.reciprocal(torch.exp(-logits) + 1.0) + bias
    for routing, ranked, limit in ((v2(logits, impl), softmax, V2), (v3(logits, bias, impl), sigmoid, V3)):
        expected = [by_hand(row, limit, 3) for row in ranked.tolist()]
        assert routing.experts.tolist() == expected


@pytest.mark.parametrize("impl", IMPLS)
def test_no_row_ever_touches_more_groups_than_are_kept(impl: str) -> None:
    logits = rows(3000, seed=1)
    free = moe_route(logits, top_k=3, scale=1.0, score="softmax", impl=impl).experts // 4
    assert max(len(set(row)) for row in free.tolist()) == 3
    for routing in (v2(logits, impl), v3(logits, impl=impl)):
        assert max(len(set(row)) for row in (routing.experts // 4).tolist()) == 2


@pytest.mark.parametrize("impl", IMPLS)
def test_a_negative_biased_score_in_a_kept_group_beats_all_of_a_dropped_group(impl: str) -> None:
    """Masked experts count as -inf, not as 0: with very negative biases 0 would win."""
    bias = torch.full((16,), -5.0)
    bias[:8] = -4.0
    assert (v3(rows(50), bias, impl).experts < 8).all()


def test_weights_are_the_plain_scores_times_the_scale_and_never_those_of_the_bias() -> None:
    logits, bias = rows(20), torch.linspace(-1, 1, 16)
    routing = v2(logits)
    torch.testing.assert_close(routing.weights, 16.0 * logits.softmax(-1).gather(1, routing.experts))
    routing = v3(logits, bias)
    scores = logits.sigmoid().gather(1, routing.experts)
    torch.testing.assert_close(routing.weights, 2.5 * scores / scores.sum(-1, keepdim=True))


@pytest.mark.parametrize("impl", IMPLS)
def test_the_floor_keeps_a_row_of_vanishing_scores_finite_and_small_as_in_the_published_gate(impl: str) -> None:
    logits = torch.full((2, 16), -100.0)
    logits[1, 5] = 0.0
    weights = v3(logits, impl=impl).weights
    assert torch.isfinite(weights).all() and weights[0].max() < 1e-12
    torch.testing.assert_close(weights[1].sum(), torch.tensor(2.5))


def test_gradients_with_groups_are_the_numeric_ones() -> None:
    def op(logits: Tensor, **rest: object) -> Tensor:
        return moe_route(logits, top_k=3, scale=2.5, score="sigmoid", floor=1e-20, limit=V3, **rest).weights  # type: ignore[arg-type]

    given = {"logits": rows(4).double()}
    laws.assert_gradients(op, given)
    laws.assert_gradients_of_kernel(op, given)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("gate", [v2, v3])
def test_a_row_with_groups_has_the_same_bits_in_any_batch(gate: object, impl: str) -> None:
    laws.assert_rows_ignore_neighbours(lambda logits: gate(logits, impl=impl), {"logits": rows(41)}, ("logits",))  # type: ignore[operator]


def test_one_kept_group_of_one_limits_nothing() -> None:
    logits = rows(30)
    limited = moe_route(logits, top_k=3, scale=1.0, limit=GroupLimit(1, 1, 1))
    assert all(torch.equal(a, b) for a, b in zip(limited, moe_route(logits, top_k=3, scale=1.0), strict=True))


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (GroupLimit(3, 2, 1), r"groups \(3\) must divide.*16"),
        (GroupLimit(4, 5, 1), r"kept \(5\) of 4 groups"),
        (GroupLimit(8, 1, 1), r"kept \(1\) of 8 groups of 2 experts.*top_k \(3\)"),
        (GroupLimit(8, 4, 3), r"best \(3\) must be between 1 and the experts of a group \(2\)"),
    ],
)
def test_impossible_groups_are_refused(limit: GroupLimit, message: str) -> None:
    with pytest.raises(KernelInputError, match=message):
        moe_route(torch.zeros(2, 16), top_k=3, scale=1.0, limit=limit)
