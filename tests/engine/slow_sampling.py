"""Sampling as it is written down, one row and one token at a time: what the engine's sampler is compared with."""

import math
from collections.abc import Sequence

import numpy as np

from benthic.engine.sampling import SamplingParams

FORBIDDEN = np.float32(-math.inf)


def ruled_logits(
    logits: Sequence[float],
    params: SamplingParams,
    prompt: Sequence[int],
    generated: Sequence[int],
    stop_ids: frozenset[int] = frozenset(),
) -> list[np.float32]:
    """The rules of a request on one row, in float32 as the sampler's."""
    changed = []
    biases = dict(params.logit_bias)
    budget_is_used = params.thinking_budget == len(generated) and params.reasoning_end_id not in generated
    for token, value in enumerate(np.asarray(logits, np.float32)):
        if token in prompt or token in generated:
            factor = np.float32(params.repetition_penalty)
            value = value / factor if value > 0 else value * factor
        count = list(generated).count(token)
        value = value - np.float32(params.frequency_penalty * count + params.presence_penalty * (count > 0))
        value = value + np.float32(biases.get(token, 0.0))
        if len(generated) < params.min_tokens and token in stop_ids:
            value = FORBIDDEN
        if budget_is_used:
            value = np.float32(0.0) if token == params.reasoning_end_id else FORBIDDEN
        changed.append(value)
    return changed


def distribution(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """Temperature, top-k, top-p, min-p, in float64."""
    tokens = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if params.temperature == 0:
        return [float(token == tokens[0]) for token in range(len(logits))]
    best = logits[tokens[0]]
    weight = {token: math.exp((logits[token] - best) / params.temperature) for token in tokens}
    if params.top_k:
        tokens = tokens[: params.top_k]
    mass = params.top_p * sum(weight[token] for token in tokens)
    kept, reached = [], 0.0
    for token in tokens:
        if kept and reached >= mass:
            break
        kept.append(token)
        reached += weight[token]
    kept = [token for token in kept if weight[token] >= params.min_p]
    total = sum(weight[token] for token in kept)
    return [weight[token] / total if token in kept else 0.0 for token in range(len(logits))]
