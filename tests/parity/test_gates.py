"""The gates of V2 and V3 are those of transformers: the same experts, the same weights to 1e-6."""

import pytest
import torch
from torch import Tensor
from transformers.models.deepseek_v2.configuration_deepseek_v2 import DeepseekV2Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

from benthic.kernels.moe_route import GroupLimit, Routing, moe_route

HIDDEN, EXPERTS, TOP_K, ROWS = 32, 16, 3, 200
SIZES = {"hidden_size": HIDDEN, "n_routed_experts": EXPERTS, "num_experts_per_tok": TOP_K, "num_attention_heads": 4}


def hidden_rows(seed: int) -> Tensor:
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(seed))


def random_gate(gate: torch.nn.Module, seed: int, *, tied: bool) -> torch.nn.Module:
    """Random weights; `tied` gives experts equal scores in pairs, across and within groups."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        gate.weight.copy_(torch.randn(gate.weight.shape, generator=generator))
        if hasattr(gate, "e_score_correction_bias"):
            gate.e_score_correction_bias.copy_(0.3 * torch.randn(EXPERTS, generator=generator))
        if tied:
            for tensor in (gate.weight, getattr(gate, "e_score_correction_bias", None)):
                if tensor is not None:
                    tensor[1::2] = tensor[::2].clone()
                    tensor[12:] = tensor[:4].clone()
    return gate


def dense(weights: Tensor, experts: Tensor) -> Tensor:
    """Each expert's weight, 0 where it is not chosen, [R, E]."""
    return torch.zeros(len(weights), EXPERTS).scatter_(1, experts, weights)


def published(gate: torch.nn.Module, x: Tensor) -> tuple[Tensor, Routing]:
    logits, weights, experts = gate(x)
    return logits, Routing(weights, experts)


@torch.no_grad()
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("method", "kept"), [("greedy", None), ("group_limited_greedy", 2), ("group_limited_greedy", 3)]
)
def test_the_gate_of_v2_is_transformers(method: str, kept: int | None, seed: int, impl: str) -> None:
    config = DeepseekV2Config(
        **SIZES, topk_method=method, n_group=4, topk_group=kept or 4, routed_scaling_factor=16.0, norm_topk_prob=False
    )
    logits, theirs = published(random_gate(DeepseekV2TopkRouter(config), seed, tied=False), hidden_rows(seed))
    limit = GroupLimit(4, kept, 1) if kept else None
    ours = moe_route(logits, top_k=TOP_K, scale=16.0, score="softmax", normalize=False, limit=limit, impl=impl)
    torch.testing.assert_close(dense(*ours) / 16, dense(*theirs) / 16, rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("normalize", [True, False])
def test_the_gate_of_v3_is_transformers(normalize: bool, seed: int, impl: str) -> None:
    config = DeepseekV3Config(**SIZES, n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=normalize)
    gate = random_gate(DeepseekV3TopkRouter(config), seed, tied=False)
    logits, theirs = published(gate, hidden_rows(seed))
    ours = moe_route(
        logits, top_k=TOP_K, scale=2.5, score="sigmoid", bias=gate.e_score_correction_bias, normalize=normalize,
        floor=1e-20, limit=GroupLimit(4, 2, 2), impl=impl,
    )  # fmt: skip
    torch.testing.assert_close(dense(*ours), dense(*theirs), rtol=0, atol=2.5e-6)


@torch.no_grad()
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_where_scores_tie_both_take_equal_weights_and_ours_the_lower_experts(impl: str) -> None:
    """Which of equals torch.topk takes is not defined, so the weights are compared in order of size."""
    logits, theirs = published(
        random_gate(
            DeepseekV2TopkRouter(DeepseekV2Config(**SIZES, topk_method="greedy", routed_scaling_factor=1.0)),
            7,
            tied=True,
        ),
        hidden_rows(7),
    )
    ours = moe_route(logits, top_k=TOP_K, scale=1.0, score="softmax", normalize=False, impl=impl)
    torch.testing.assert_close(ours.weights, theirs.weights.sort(-1, descending=True).values, rtol=0, atol=1e-6)
    for row, experts in zip(logits.tolist(), ours.experts.tolist(), strict=True):
        assert experts == sorted(range(EXPERTS), key=lambda e: (-row[e], e))[:TOP_K]
