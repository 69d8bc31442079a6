"""Inputs of routed_experts: FP4 matrices whose exponents span what is asked, FP8 rows, and routings."""

from typing import Literal

import torch
from torch import Tensor

from benthic.kernels.moe_route import ExpertRows, Routing
from benthic.kernels.moe_route.rows import expert_rows_ref
from benthic.kernels.quantize import QuantizedRows, quantize_rows

Span = Literal["near", "wide rows", "wide runs"]
"""Exponents of a row within 8 steps; beyond 12 steps, yet near in each run of 128; beyond 12 in a run too."""


def fp4(
    experts: int, outputs: int, inputs: int, span: Span = "near", device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Codes uint8 [E, O, I / 2] and UE8M0 bytes [E, O, I / 32] of values of about 1 / sqrt(I)."""
    codes = torch.randint(0, 256, (experts, outputs, inputs // 2), dtype=torch.uint8, device=device)
    groups = (experts, outputs, inputs // 32)
    exponent = torch.randint(0, 8, groups, device=device) + torch.randint(0, 4, (experts, outputs, 1), device=device)
    if span == "wide rows":
        runs = torch.randint(-20, 1, (experts, outputs, -(-groups[2] // 4)), device=device)
        exponent += runs.repeat_interleave(4, -1)[..., : groups[2]]
    elif span == "wide runs":
        exponent -= 14 * (torch.rand(groups, device=device) < 0.3).long()
    base = 120 - inputs.bit_length() // 2
    return codes, (exponent + base).to(torch.uint8)


def rows(num_rows: int, size: int, device: torch.device | str = "cpu") -> QuantizedRows:
    """FP8 rows of very different magnitudes."""
    x = torch.randn(num_rows, size, device=device) * torch.logspace(0, 1, max(num_rows, 1), device=device)[:, None]
    return quantize_rows(x)


def routing(
    num_rows: int,
    experts: int,
    top_k: int,
    device: torch.device | str = "cpu",
    only: int | None = None,
    live: int | None = None,
) -> ExpertRows:
    """Random distinct experts a row, of the first `only` of them; weights that sum to 1.5; rows from `live` on rest."""
    picks = torch.rand(num_rows, experts if only is None else only, device=device).argsort(1)[:, :top_k]
    weights = torch.rand(num_rows, top_k, device=device) + 0.1
    return from_picks(picks, 1.5 * weights / weights.sum(1, keepdim=True), experts, live)


def from_picks(picks: Tensor, weights: Tensor, experts: int, live: int | None = None) -> ExpertRows:
    """The routing of given picks [R, K]."""
    num_rows = None if live is None else torch.tensor([live], device=picks.device)
    return expert_rows_ref(Routing(weights, picks.long()), experts, num_rows)
