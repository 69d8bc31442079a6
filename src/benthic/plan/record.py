"""A plan as plain data, for `--json`: exact numbers in bytes, operations and seconds."""

from dataclasses import asdict
from typing import Any

from benthic.plan.compare import Comparison
from benthic.plan.costs import equivalent, merged, total
from benthic.plan.fit import Fit
from benthic.plan.floors import Step
from benthic.plan.lookups import Work
from benthic.plan.notes import notes
from benthic.plan.outcome import Outcome
from benthic.plan.plan import MachinePlan, Plan
from benthic.plan.sizing import Sizing
from benthic.plan.traffic import decode_traffic, prefill_traffic


def record(plan: Plan) -> dict[str, Any]:
    """One JSON object."""
    sizing, choices = plan.sizing, plan.choices
    costs = sizing.costs
    return {
        "model": costs.name,
        "choices": {
            "contexts": list(choices.contexts),
            "concurrency": choices.concurrency,
            "ceilings": choices.source,
            **asdict(choices.formats),
        },
        "parameters": costs.parameters,
        "active_parameters": round(costs.active_parameters),
        "weights": {
            "bytes": sizing.weight_bytes,
            "parts": [asdict(item) for item in sizing.held],
        },
        "computation": {
            str(context): _computation(sizing, context, choices.concurrency) for context in choices.contexts
        },
        "state": {
            "token_bytes": sizing.state.token_bytes,
            "fixed_bytes": sizing.state.fixed_bytes,
            "pools": [asdict(pool) for pool in sizing.state.pools()],
            "conversation_bytes": {
                str(context): sizing.state.conversation_bytes(context) for context in choices.contexts
            },
        },
        "machines": [_machine(machine) for machine in plan.machines],
        "comparisons": [_comparison(comparison) for comparison in plan.comparisons],
        "notes": list(notes(plan)),
    }


def _computation(sizing: Sizing, context: int, concurrency: int) -> dict[str, Any]:
    costs = sizing.costs
    return {
        "decode": {
            **_works(costs.decode(context)),
            "bytes": decode_traffic(sizing, context, concurrency),
        },
        "prefill_mean": {**_works(costs.prefill(context)), "bytes": prefill_traffic(sizing, context)},
    }


def _works(works: tuple[Work, ...]) -> dict[str, Any]:
    parts = [{"part": work.part, "format": work.form, "flops": work.flops} for work in merged(works)]
    return {"flops": total(works), "fp8_equivalent_flops": equivalent(works), "parts": parts}


def _machine(machine: MachinePlan) -> dict[str, Any]:
    device = machine.machine.device
    last = machine.points[-1]
    ceilings = machine.machine.ceilings(last.source)
    return {
        "name": machine.machine.name,
        "num_devices": machine.machine.num_devices,
        "device_memory_bytes": device.memory_bytes,
        "ceilings": {
            "source": machine.machine.source(last.source),
            "bandwidth": ceilings.bandwidth,
            "flops": dict(ceilings.rates),
            "link": ceilings.link,
        },
        "balance": asdict(last.balance) if last.balance else None,
        "contexts": [_point(point) for point in machine.points],
        "changes": [
            {"choice": change.choice, "effect": change.words(last), **_point(change.after)}
            for change in machine.changes
        ],
    }


def _point(point: Outcome) -> dict[str, Any]:
    return {
        "context": point.context,
        "concurrency": point.concurrency,
        "binds": point.binds,
        "words": point.words,
        "conversations": point.conversations,
        "tokens_per_s_at_most": point.tokens_per_s,
        "ways": [_fit(fit) for fit in point.ways],
        "best": _fit(point.best),
        "least": _fit(point.least),
        "decode": _step(point.decode),
        "prefill": _step(point.prefill),
    }


def _fit(fit: Fit | None) -> dict[str, Any] | None:
    return None if fit is None else {"name": fit.name, **asdict(fit)}


def _step(step: Step | None) -> dict[str, Any] | None:
    return None if step is None else {**asdict(step), "floor_s": step.floor_s, "bound": step.bound}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    mine, others = comparison.served_token_bytes
    return {
        "model": comparison.other.name,
        "parameters": comparison.other.parameters,
        "active_parameters": round(comparison.other.active_parameters),
        "token_bytes": [comparison.one.token_bytes, comparison.other.token_bytes],
        "token_bytes_ratio": comparison.state_ratio,
        "served_token_bytes": [mine, others],
        "served_token_bytes_ratio": comparison.served_ratio,
        "contexts": [asdict(at) for at in comparison.contexts],
    }
