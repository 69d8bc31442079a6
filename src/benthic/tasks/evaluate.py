"""How often the model is right: held-out questions through whatever generates, one line a cell.

`evaluate` knows no engine. It is handed a function from request bodies to replies, and `benthic eval` hands it the
server's own path.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benthic.tasks.cells import CELLS, Cell, traits
from benthic.tasks.conversation import Conversation
from benthic.tasks.grade import Reply, calls_are_right, is_right, is_well_formed
from benthic.tasks.requests import Body, request_bodies
from benthic.tasks.sources import Sources

Generate = Callable[[list[Body]], list[Reply]]
"""Answers request bodies, in order. Bodies of one call are independent and may run together."""

LISTED_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """One conversation, judged. The flags that do not apply are None."""

    conversation: Conversation
    is_right: bool
    is_well_formed: bool | None
    is_trace_exact: bool | None
    reply: Reply
    """The reply that decided: the last one, or the first wrong one."""


@dataclass(frozen=True, slots=True)
class CellResult:
    """All verdicts of one cell in one mode."""

    cell: Cell
    thinking: bool
    verdicts: tuple[Verdict, ...]

    @property
    def right(self) -> int:
        return sum(verdict.is_right for verdict in self.verdicts)

    @property
    def well_formed(self) -> int | None:
        """How many replies were well-formed calls; None where no calls are asked for."""
        flags = [verdict.is_well_formed for verdict in self.verdicts if verdict.is_well_formed is not None]
        return sum(flags) if flags else None

    @property
    def is_met(self) -> bool:
        """Whether every goal of the cell is met."""
        count = len(self.verdicts)
        right_enough = self.cell.goal is None or self.right >= self.cell.goal * count
        goal, well_formed = self.cell.well_formed_goal, self.well_formed
        return right_enough and (goal is None or well_formed is None or well_formed >= goal * count)


def evaluate(
    generate: Generate, *, per_cell: int = 32, seed: int = 0, cells: Sequence[Cell] = CELLS
) -> Iterable[CellResult]:
    """Examines every cell in both modes; results come as they are ready.

    The published table takes 256 questions a cell (an error of 1.4 points at 95 %), a quick look 32. Questions are
    the same on every machine: they need nothing but what ships with the package.
    """
    sources = Sources.bundled()
    for cell in cells:
        for thinking in (False, True):
            conversations = cell.draw(thinking, sources, seed, per_cell)
            yield CellResult(cell, thinking, tuple(judge(conversations, generate)))


def judge(conversations: list[Conversation], generate: Generate) -> list[Verdict]:
    """Asks and judges conversations of one exchange each; those with calls get their results only for right calls."""
    bodies = [request_bodies(conversation) for conversation in conversations]
    first = generate([requests[0] for requests in bodies])
    proceeds = [
        bool(conversation.exchanges[0].calls) and calls_are_right(conversation.exchanges[0], reply)
        for conversation, reply in zip(conversations, first, strict=True)
    ]
    second = iter(generate([requests[1] for requests, goes_on in zip(bodies, proceeds, strict=True) if goes_on]))
    return [
        judge_one(conversation, reply, next(second) if goes_on else None)
        for conversation, reply, goes_on in zip(conversations, first, proceeds, strict=True)
    ]


def judge_one(conversation: Conversation, first: Reply, second: Reply | None) -> Verdict:
    exchange, thinking = conversation.exchanges[0], conversation.thinking
    is_trace_exact = first.reasoning.strip() == exchange.reasoning.strip() if thinking else None
    if not exchange.calls:
        return Verdict(conversation, is_right(exchange, thinking, first), None, is_trace_exact, first)
    right = second is not None and is_right(exchange, thinking, second)
    return Verdict(conversation, right, is_well_formed(conversation, first), is_trace_exact, second or first)


def report_line(result: CellResult) -> str:
    """`addition, three digits  direct    99.2 %  127/128  goal 97 %  met`"""
    count = len(result.verdicts)
    line = f"{result.cell.name:26s}{'thinking' if result.thinking else 'direct':10s}{share(result.right, count)}"
    if result.cell.goal is not None:
        line += (
            f"  goal {100 * result.cell.goal:.0f} %  {'met' if result.right >= result.cell.goal * count else 'MISSED'}"
        )
    if result.well_formed is not None and result.cell.well_formed_goal is not None:
        verdict = "met" if result.well_formed >= result.cell.well_formed_goal * count else "MISSED"
        line += f"; well-formed {share(result.well_formed, count).strip()}"
        line += f"  goal {100 * result.cell.well_formed_goal:.0f} %  {verdict}"
    return line


def detail_lines(result: CellResult) -> list[str]:
    """Sub-tables, exactness of the reasoning, and the first wrong replies."""
    groups: dict[str, list[bool]] = {}
    for verdict in result.verdicts:
        for trait in traits(verdict.conversation):
            groups.setdefault(trait, []).append(verdict.is_right)
    lines = [f"    {trait:24s}{share(sum(flags), len(flags))}" for trait, flags in sorted(groups.items())]
    if result.thinking:
        exact = sum(bool(verdict.is_trace_exact) for verdict in result.verdicts)
        lines.append(f"    {'reasoning exact':24s}{share(exact, len(result.verdicts))}")
    wrong = [verdict for verdict in result.verdicts if not verdict.is_right]
    return lines + [failure_line(verdict) for verdict in wrong[:LISTED_FAILURES]]


def failure_line(verdict: Verdict) -> str:
    exchange, reply = verdict.conversation.exchanges[0], verdict.reply
    said = reply.content or "; ".join(f"{call.name}({call.arguments})" for call in reply.calls)
    expected = exchange.expected(verdict.conversation.thinking)
    return f"    wrong: {shorten(exchange.question)!r} gave {shorten(said)!r}, not {shorten(expected)!r}"


def shorten(text: str, limit: int = 90) -> str:
    return text if len(text) <= limit else "..." + text[3 - limit :]


def share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):5.1f} %{part:6d}/{whole}"
