"""The records every task produces: exchanges, joined to conversations.

An `Exchange` is one question with its right answer, in both modes. A `Conversation` is what a client would have sent,
answers included. Neither knows tokens; `render` turns a conversation into text, `requests` into request bodies.
"""

from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
"""A JSON object: a tool definition, a schema, the arguments of a call."""
ResponseFormat = Literal["text", "json_object"] | Json
"""A schema that the answer must match, or one of the named formats."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call with its arguments in the order in which the reply names them."""

    name: str
    arguments: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A question and its answer. With `calls`, the first reply makes the calls and the answer follows the results."""

    task: str
    operands: tuple[str, ...]
    """Canonical operands, such as `addition|285|347`: they decide between training and evaluation (see split.py)."""
    question: str
    reasoning: str
    """What thinking mode says before the answer (before the calls, where there are some)."""
    answer: str
    direct_answer: str | None = None
    """The answer without thinking where it differs: it may have to show its work."""
    spelled: bool = False
    """Whether the answer is tokenised one letter at a time."""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[str, ...] = ()
    """Text of each call's result, in the order of the calls."""
    final_reasoning: str = ""
    """What thinking mode says between the results and the answer."""

    def __post_init__(self) -> None:
        assert len(self.calls) == len(self.results)

    def expected(self, thinking: bool) -> str:
        """The right content of the last reply."""
        return self.answer if thinking or self.direct_answer is None else self.direct_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Exchanges under one system prompt, in one mode."""

    exchanges: tuple[Exchange, ...]
    thinking: bool
    system: str = ""
    tools: tuple[Json, ...] = ()
    """The `function` objects offered, in order."""
    response_format: ResponseFormat = "text"
    maximum_effort: bool = False
    """Thinking with the longest effort instruction."""
