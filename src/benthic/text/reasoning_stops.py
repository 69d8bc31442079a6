"""Stop strings in the reasoning of a reply, for requests that ask for it: deepseek-recipe looks for none there.

Tokens wait here while their text may still become a stop string, and come out whole, with their log-probabilities.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from benthic.text.detokenize import StopStrings

Entry = TypeVar("Entry")


class Released(NamedTuple, Generic[Entry]):
    """What is certain now: groups of tokens and, once a stop string is there, the text before it in the tokens left."""

    groups: list[list[Entry]]
    rest: str = ""
    num_rest: int = 0
    """Tokens that the rest and the stop string came from."""
    is_stopped: bool = False


class ReasoningStops(Generic[Entry]):
    """The text of one reasoning, in groups of tokens that are whole characters together."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stops = StopStrings(stop)
        self._waiting: list[tuple[list[Entry], str]] = []
        self._num_certain = 0
        """Characters of the waiting groups that are no part of a stop string."""

    def push(self, group: list[Entry], text: str) -> Released[Entry]:
        """Takes a group with its text."""
        self._waiting.append((group, text))
        self._num_certain += len(self._stops.push(text))
        groups = self._certain_groups()
        if self._stops.matched is None:
            return Released(groups)
        rest = "".join(text for _, text in self._waiting)[: self._num_certain]
        return Released(groups, rest, sum(len(group) for group, _ in self._waiting), True)

    def flush(self) -> list[list[Entry]]:
        """The reasoning is over: what waited is no stop string after all."""
        self._num_certain += len(self._stops.flush())
        return self._certain_groups()

    def _certain_groups(self) -> list[list[Entry]]:
        groups = []
        while self._waiting and len(self._waiting[0][1]) <= self._num_certain:
            group, text = self._waiting.pop(0)
            self._num_certain -= len(text)
            groups.append(group)
        return groups
