"""Grammars of a few states over token ids, and a reader of them that trusts nobody: what the engine's masks are tried
with. No text, no library."""

import json
import random
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benthic.engine.grammar import Grammar
from benthic.errors import RequestError

END_ID = 1


@dataclass(frozen=True)
class Automaton:
    """A deterministic automaton. State 0 is the first. In a `free` state every token may come and leads back to it."""

    edges: tuple[Mapping[int, int], ...]
    accepting: frozenset[int]
    free: frozenset[int] = frozenset()

    def next(self, state: int, token: int) -> int | None:
        if state in self.free and token != END_ID:
            return state
        return self.edges[state].get(token)

    def grammar(self, starts_after: int | None = None, prefix: str = "") -> Grammar:
        text = json.dumps(
            {"edges": [dict(own) for own in self.edges], "accepting": sorted(self.accepting), "free": sorted(self.free)}
        )
        return Grammar(text, text.encode(), starts_after, prefix)

    def verdict(self, tokens: Iterable[int]) -> str:
        """What an answer is: "whole", "unfinished", "wrong"; the end token may be its last."""
        state: int | None = 0
        is_over = False
        for token in tokens:
            if is_over or state is None:
                return "wrong"
            if token == END_ID and state in self.accepting:
                is_over = True
            else:
                state = self.next(state, token)
        if state is None:
            return "wrong"
        return "whole" if state in self.accepting else "unfinished"


def random_automaton(rng: random.Random, vocab_size: int, *, num_states: int = 6) -> Automaton:
    """Every state can reach an accepting one; some allow a handful of tokens, some half the vocabulary, some all."""
    edges: list[dict[int, int]] = []
    for state in range(num_states):
        tokens = rng.sample(range(2, vocab_size), rng.choice([1, 2, 5, vocab_size // 2]))
        own = {token: rng.randrange(num_states) for token in tokens}
        own[tokens[0]] = min(state + 1, num_states - 1)  # a way to the last state
        edges.append(own)
    last = num_states - 1
    if rng.random() < 0.5:
        edges[last] = {}
    accepting = {last} | {state for state in range(num_states) if rng.random() < 0.15}
    free = {rng.randrange(1, last)} if rng.random() < 0.2 else set()
    return Automaton(tuple(edges), frozenset(accepting), frozenset(free & accepting))


def chain(*steps: Seq[int], loops: bool = False) -> Automaton:
    """One of the tokens of each step after the other, for ever if it `loops`; whole behind the last."""
    edges = [dict.fromkeys(step, number + 1) for number, step in enumerate(steps)]
    edges.append(dict.fromkeys(steps[0], 1) if loops else {})
    return Automaton(tuple(edges), frozenset({len(steps)}))


@dataclass
class AutomatonMask:
    """A `TokenMask`; `past` are the states that it came through."""

    automaton: Automaton
    state: int = 0
    is_over: bool = False
    past: list[tuple[int, bool]] = field(default_factory=list)

    def fill(self, words: NDArray[np.int32]) -> bool:
        assert not self.is_over, "nothing follows the end token"
        assert not words.any()
        if self.state in self.automaton.free:
            return False
        bits = words.view(np.uint32)
        ends = [END_ID] if self.state in self.automaton.accepting else []
        for token in [*self.automaton.edges[self.state], *ends]:
            bits[token // 32] |= np.uint32(1 << token % 32)
        return True

    def accept(self, token_id: int) -> bool:
        if self.is_over:
            return False
        is_end = token_id == END_ID and self.state in self.automaton.accepting
        following = self.state if is_end else self.automaton.next(self.state, token_id)
        if following is None:
            return False
        self.past.append((self.state, self.is_over))
        self.state, self.is_over = following, is_end
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.past), (num_tokens, len(self.past))
        for _ in range(num_tokens):
            self.state, self.is_over = self.past.pop()

    def fork(self) -> "AutomatonMask":
        return AutomatonMask(self.automaton, self.state, self.is_over, list(self.past))

    @property
    def is_ended(self) -> bool:
        is_last = self.state in self.automaton.accepting and not self.automaton.edges[self.state]
        return self.is_over or (is_last and self.state not in self.automaton.free)


class AutomatonMasks:
    """A `MaskSource`; counts how often it read a grammar."""

    def __init__(self) -> None:
        self.num_read = 0

    def start(self, grammar: Grammar) -> AutomatonMask:
        self.num_read += 1
        try:
            read = json.loads(grammar.compiled)
        except ValueError:
            raise RequestError("the grammar is no automaton; it must be JSON", param="grammar") from None
        edges = tuple({int(token): state for token, state in own.items()} for own in read["edges"])
        mask = AutomatonMask(Automaton(edges, frozenset(read["accepting"]), frozenset(read["free"])))
        for token in grammar.prefix.split():
            assert mask.accept(int(token)), token
        mask.past.clear()
        return mask
