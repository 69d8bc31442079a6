"""Segments to tokens: one training example is token ids with a loss weight each."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import Tokenizer

from benthic.tasks.render import BOS, EOS, Segment

LETTERWISE = re.compile(r" ?[A-Za-z]|[^A-Za-z ]+| ")


@dataclass(frozen=True, slots=True)
class Example:
    """Tokens of one document; `weights[i]` is the loss weight of predicting `token_ids[i]` from what precedes it."""

    task: str
    token_ids: list[int]
    weights: list[float]


class ExampleEncoder:
    """Turns segments into examples with the model's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._letters: dict[str, list[int]] = {}

    def encode(self, task: str, segments: Iterable[Segment]) -> Example:
        """Neighbouring segments of equal kind are joined first: a token may span their boundary, as in the server."""
        token_ids: list[int] = []
        weights: list[float] = []
        for segment in join_equal(segments):
            ids = self._spell(segment.text) if segment.spelled else self._ids(segment.text)
            token_ids += ids
            weights += [segment.weight] * len(ids)
        return Example(task, token_ids, weights)

    def encode_text(self, text: str, weight: float = 1.0) -> Example:
        """Running text between the begin and end tokens, all of it trained on."""
        return self.encode("text", [Segment(BOS), Segment(text + EOS, weight)])

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _spell(self, text: str) -> list[int]:
        """One token a letter (with the blank before it, where there is one)."""
        ids: list[int] = []
        for piece in LETTERWISE.findall(text):
            if piece not in self._letters:
                self._letters[piece] = self._ids(piece)
            ids += self._letters[piece]
        return ids


def join_equal(segments: Iterable[Segment]) -> list[Segment]:
    joined: list[Segment] = []
    for segment in segments:
        last = joined[-1] if joined else None
        if last and (last.weight, last.spelled) == (segment.weight, segment.spelled):
            joined[-1] = Segment(last.text + segment.text, last.weight, last.spelled)
        else:
            joined.append(segment)
    return joined
