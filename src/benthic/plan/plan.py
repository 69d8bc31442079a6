"""The whole plan of a model: sizing, every machine at every context, what binds, what to change, comparisons."""

from dataclasses import dataclass

from benthic.errors import ConfigError
from benthic.plan.changes import Change, changes
from benthic.plan.compare import Comparison, compare
from benthic.plan.hardware import Machine, Source
from benthic.plan.outcome import Outcome, outcome
from benthic.plan.sizing import Formats, Sizing, size
from benthic.plan.subject import Subject

CONTEXTS = (4096, 32768, 131072, 1048576)
"""Looked at unless others are asked for, as far as the model goes."""

MOST_TOKENS = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is planned for. `source`: of ceilings, measured where they are known, or from datasheets."""

    machines: tuple[Machine, ...]
    contexts: tuple[int, ...]
    formats: Formats
    concurrency: int = 64
    source: Source = "measured"

    def __post_init__(self) -> None:
        for context in self.contexts:
            if not 1 <= context <= MOST_TOKENS:
                raise ConfigError(f"the context is {context} tokens; it must be 1 to {MOST_TOKENS:,}")
        if self.concurrency < 1:
            raise ConfigError(f"the concurrency is {self.concurrency}; it must be at least 1 conversation")
        assert self.contexts and self.machines, self


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """`points`: one for each context; `changes`: what else could be chosen at the last."""

    machine: Machine
    points: tuple[Outcome, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `benthic plan` says."""

    choices: Choices
    sizing: Sizing
    machines: tuple[MachinePlan, ...]
    comparisons: tuple[Comparison, ...]


def default_contexts(subject: Subject, others: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The usual lengths up to the model's limit, and the limit."""
    limit = max(subject.config.max_position_embeddings, *others, 1)
    return (*(context for context in CONTEXTS if context < limit), limit)


def plan(subject: Subject, choices: Choices, others: tuple[str, ...] = ()) -> Plan:
    """Plans a model on every machine, and puts it beside others.

    Raises:
        ConfigError, CheckpointError: a choice is not possible with this model.
    """
    sizing = size(subject, choices.formats)
    machines = []
    for machine in choices.machines:
        points = tuple(
            outcome(sizing, machine, choices.source, context, choices.concurrency) for context in choices.contexts
        )
        machines.append(MachinePlan(machine, points, changes(points[-1])))
    comparisons = tuple(compare(sizing.costs, other, choices.contexts) for other in others)
    return Plan(choices, sizing, tuple(machines), comparisons)
