"""Losses that pull the router towards an even load (V2 report 2.1.3, V3 report 2.1.2), for each sequence of T tokens:

    expert         sum_i f_i P_i      f_i  = E / (K T) * tokens that choose expert i
                                      P_i  = mean over tokens of s_i
    device         sum_d f'_d P'_d    f'_d = mean of f_i over the experts of device d
                                      P'_d = sum of P_i over them
    communication  sum_d f''_d P'_d   f''_d = D / (M T) * tokens that are sent to device d
    sequence       as expert, with tokens counted where the scores alone, without the bias, would send them

s are scores over their sum. Counts have no gradient, so with sequences weighted by their length a loss is

    1 / (all tokens) * sum over rows of f(sequence of the row) . s(row)

and no sum over a sequence is differentiated. Each loss is 1 a layer when all is even. Sequences are the documents of a
batch; cutting a step into more batches changes nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.moe_route import moe_route, router_scores
from benthic.models.trace import Trace
from benthic.train.balance import BalanceConfig
from benthic.train.expert_map import ExpertMap


class Sequences(NamedTuple):
    """The documents of a batch.

    `of_row` int64 [R] is the number of each row's document, below `num_sequences`; `is_real` bool [R] is False for
    fillers.
    """

    of_row: Tensor
    num_sequences: int
    is_real: Tensor


class BalanceLosses(NamedTuple):
    """fp32 scalars, unweighted, summed over layers."""

    sequence: Tensor
    expert: Tensor
    device: Tensor
    communication: Tensor

    def weighted(self, config: BalanceConfig) -> Tensor:
        """What enters the training loss."""
        return (
            config.sequence_weight * self.sequence
            + config.expert_weight * self.expert
            + config.device_weight * self.device
            + config.communication_weight * self.communication
        )


def wants_losses(experts: ExpertMap, config: BalanceConfig) -> bool:
    """Whether any layer has a loss with a weight."""
    weights = (config.expert_weight, config.device_weight, config.communication_weight)
    kinds = set(experts.routing.values())
    return ("bias" in kinds and config.sequence_weight > 0) or ("score" in kinds and any(weights))


def balance_losses(trace: Trace, sequences: Sequences, experts: ExpertMap, num_tokens: Tensor) -> BalanceLosses:
    """The losses of a pass whose trace kept router logits.

    Args:
        num_tokens: rows of documents in the whole step, scalar.

    Layers that choose by score take V2's losses, those with a correction bias the sequence loss, hash layers none.
    """
    zero = torch.zeros((), device=sequences.is_real.device)
    sums = BalanceLosses(zero, zero, zero, zero)
    for layer, logits in trace.router_logits.items():
        routing = experts.routing[layer]
        if routing == "hash":
            continue
        scores = router_scores(logits, experts.score)
        shares = scores / scores.sum(-1, keepdim=True) * (sequences.is_real / num_tokens)[:, None]
        if routing == "bias":
            unbiased = moe_route(logits.detach(), top_k=experts.top_k, scale=1.0, score=experts.score).experts
            found = BalanceLosses(_dot(_expert_load(unbiased, sequences, experts), shares, sequences), zero, zero, zero)
        else:
            found = _v2_losses(trace.experts[layer], shares, sequences, experts)
        sums = BalanceLosses(*(total + part for total, part in zip(sums, found, strict=True)))
    return sums


def _v2_losses(chosen: Tensor, shares: Tensor, sequences: Sequences, experts: ExpertMap) -> BalanceLosses:
    load = _expert_load(chosen, sequences, experts)
    device_shares = shares.unflatten(1, (experts.num_devices, -1)).sum(-1)
    device_load = load.unflatten(1, (experts.num_devices, -1)).mean(-1)
    sent = _device_load(chosen, sequences, experts)
    return BalanceLosses(
        shares.new_zeros(()),
        _dot(load, shares, sequences),
        _dot(device_load, device_shares, sequences),
        _dot(sent, device_shares, sequences),
    )


def _dot(load: Tensor, shares: Tensor, sequences: Sequences) -> Tensor:
    """sum over rows of load [S, n] of the row's sequence times shares [R, n]."""
    return (load.index_select(0, sequences.of_row) * shares).sum()


def _expert_load(chosen: Tensor, sequences: Sequences, experts: ExpertMap) -> Tensor:
    """f_i of each sequence, fp32 [S, E]."""
    counts = _count(chosen, experts.num_experts, sequences)
    return counts * (experts.num_experts / experts.top_k) / _lengths(sequences)


def _device_load(chosen: Tensor, sequences: Sequences, experts: ExpertMap) -> Tensor:
    """f''_d of each sequence, fp32 [S, D]: a row counts once for a device, however many of its experts it takes."""
    devices = touched_devices(chosen, experts).to(torch.int64)
    counts = devices.new_zeros(sequences.num_sequences, experts.num_devices).index_add_(0, sequences.of_row, devices)
    return counts * (experts.num_devices / experts.max_devices) / _lengths(sequences)


def touched_devices(chosen: Tensor, experts: ExpertMap) -> Tensor:
    """Which devices each row is sent to, bool [R, D], from its experts [R, K]."""
    touched = torch.zeros(len(chosen), experts.num_devices, dtype=torch.bool, device=chosen.device)
    return touched.scatter_(1, experts.device_of(chosen), True)


def _count(chosen: Tensor, num_experts: int, sequences: Sequences) -> Tensor:
    """Rows of each sequence that take each expert, int64 [S, E]; integer sums are exact in any order."""
    places = (sequences.of_row[:, None] * num_experts + chosen).reshape(-1)
    counts = torch.zeros(sequences.num_sequences * num_experts, dtype=torch.int64, device=chosen.device)
    return counts.scatter_add_(0, places, torch.ones_like(places)).view(-1, num_experts)


def _lengths(sequences: Sequences) -> Tensor:
    """Tokens of each sequence, int64 [S, 1]; 1 for numbers that no row has."""
    lengths = torch.zeros(sequences.num_sequences, dtype=torch.int64, device=sequences.of_row.device)
    return lengths.scatter_add_(0, sequences.of_row, torch.ones_like(sequences.of_row)).clamp(min=1)[:, None]
