"""The data of a plan's figure: lines over context length, and where their labels go. Draws nothing.

A model alone is shown with its parts; beside others each model is one line.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benthic.plan.costs import Costs, equivalent
from benthic.plan.lookups import Work
from benthic.plan.plan import Plan

SHORTEST, LONGEST = 1 << 12, 1 << 20
STEPS_PER_DOUBLING = 4
PAGE = 128
"""Whole pages: the steps between them would look like noise."""

WEIGHTS_LABEL = "products with weights"


@dataclass(frozen=True, slots=True)
class Line:
    """`values` over `contexts`; `limit` is the longest context that the model was made for.

    `is_part`: a part of the line that is no part. Colours follow the order of lines.
    """

    label: str
    contexts: tuple[int, ...]
    values: tuple[float, ...]
    limit: int
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; `levels` are horizontal lines by their labels."""

    title: str
    lines: tuple[Line, ...]
    levels: tuple[tuple[str, float], ...] = ()


def panels(plan: Plan) -> tuple[Panel, Panel]:
    """State of a conversation in bytes, and FP8-equivalent operations of a token."""
    models = [plan.sizing.costs, *(comparison.other for comparison in plan.comparisons)]
    if len(models) == 1:
        state, flops = _state_parts(plan), _flops_parts(models[0])
    else:
        state = [_line(model.name, model, model.conversation_bytes) for model in models]
        flops = [_line(model.name, model, _equivalent_at(model)) for model in models]
    return (
        Panel("State of a conversation", tuple(state), _room(plan) if len(models) == 1 else ()),
        Panel("Operations of a decoded token, FP8-equivalent", tuple(flops)),
    )


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places moved apart to at least `gap`, between `low` and `high`, in their order and near where they were."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = [min(max(places[index], low), high) for index in order]
    for _ in range(200):
        for left in range(len(found) - 1):
            lack = gap - (found[left + 1] - found[left])
            if lack > 1e-9:
                found[left] -= lack / 2
                found[left + 1] += lack / 2
        if found:
            found[0] = max(found[0], low)
            found[-1] = min(found[-1], high)
    moved = [0.0] * len(places)
    for index, place in zip(order, found, strict=True):
        moved[index] = place
    return moved


def _contexts() -> tuple[int, ...]:
    steps = int(math.log2(LONGEST / SHORTEST)) * STEPS_PER_DOUBLING
    return tuple(PAGE * round(SHORTEST * 2 ** (step / STEPS_PER_DOUBLING) / PAGE) for step in range(steps + 1))


def _line(label: str, model: Costs, value: Callable[[int], float], *, is_part: bool = False) -> Line:
    contexts = _contexts()
    return Line(label, contexts, tuple(value(context) for context in contexts), model.max_context, is_part)


def _equivalent_at(model: Costs) -> Callable[[int], float]:
    return lambda context: equivalent(model.decode(context))


def _state_parts(plan: Plan) -> list[Line]:
    model, state = plan.sizing.costs, plan.sizing.state
    lines = [_line("all of it", model, model.conversation_bytes)]
    pools = state.pools()
    growing = [pool for pool in pools if pool.token_bytes]
    if len(pools) == 1:
        return lines
    for pool in growing:
        lines.append(_line(pool.name, model, _scaled(pool.token_bytes), is_part=True))
    if state.fixed_bytes:
        lines.append(_line("windows and rings", model, _constant(state.fixed_bytes), is_part=True))
    return lines


def _flops_parts(model: Costs) -> list[Line]:
    reading = ("attention core", "index scores")

    def share(belongs: Callable[[Work], bool]) -> Callable[[int], float]:
        return lambda context: equivalent(work for work in model.decode(context) if belongs(work))

    lines = [_line("all of them", model, _equivalent_at(model))]
    lines.append(_line(WEIGHTS_LABEL, model, share(lambda work: work.part not in reading), is_part=True))
    lines.append(_line(reading[0], model, share(lambda work: work.part == reading[0]), is_part=True))
    if any(lookup.top_k for lookup in model.lookups):
        lines.append(_line(reading[1], model, share(lambda work: work.part == reading[1]), is_part=True))
    return lines


def _room(plan: Plan) -> tuple[tuple[str, float], ...]:
    """What each of the wanted conversations may take on each machine."""
    found = []
    for machine in plan.machines:
        best = machine.points[-1].best
        if best is not None:
            devices = best.num_groups * (best.num_devices if best.layout == "EP" else 1)
            room = best.room_bytes * devices / plan.choices.concurrency
            found.append((f"room for each of {plan.choices.concurrency}, {machine.machine.name}", room))
    return tuple(found)


def _scaled(token_bytes: float) -> Callable[[int], float]:
    return lambda context: token_bytes * context


def _constant(value: float) -> Callable[[int], float]:
    return lambda context: value
