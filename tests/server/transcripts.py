"""Answers of every kind, made from seeds, and all the ways in which tokens can spell them.

A transcript is a list of atoms: text, one control token, or raw bytes. Its spelling is a list of ids; whatever the
spelling, a client must read the same. Kinds: plain answers, calls, JSON, stop strings, damaged markup, calls that were
not offered, unfinished answers, half characters, and look-alikes, in which ordinary tokens spell control tokens.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benthic.text import tokenizer as spellings
from benthic.text.tokenizer import Tokenizer


class Control(str):
    """One control token; other strings are text, whatever they spell."""


Atom = str | bytes
DSML, END_THINK, THINK, USER, EOS = (
    Control(token) for token in (spellings.DSML, spellings.END_THINK, spellings.THINK, spellings.USER, spellings.EOS)
)
CONTROL = (DSML, END_THINK, THINK, USER, EOS)
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}}
NAMES = ("get_weather", "run-it", "f")

WORDS = (
    *(
        "so",
        "the sum",
        " is",
        " 632.",
        "\n",
        "\n\n",
        " ",
        "```\n",
        "**bold**",
        "x<y",
        " < ",
        "</",
        "</b>",
        "<b>",
        "a>b",
    ),
    *("你好", "、世界", "é", "😀", "👨‍👩‍👧", "🇩🇪", "ﬁ", "\u200b", "\\", '"', "'", "{", "}", "[1, 2]", "&lt;think&gt;"),
)
LOOK_ALIKES = (
    *("<think", "think>", "</think", "<thinking>", "</ think>", "<｜", "｜>", "｜DSML", "DSML｜", "<|DSML|tool_calls>"),
    *(
        "<tool_calls>",
        'invoke name="f"',
        "<invoke>",
        "</invoke>",
        "<｜User｜",
        "|DSML|",
        "<think>",
        "</think>",
        "｜DSML｜",
    ),
    *(
        '<｜DSML｜invoke name="f">',
        "</｜DSML｜tool_calls>",
        "<｜DSML｜tool_calls>\n",
        "<｜User｜>",
        "<｜end▁of▁sentence｜>",
    ),
)
JSON_VALUES: tuple[Any, ...] = (0, -1.5, True, None, "x", '你 "q" \\ \n 😀', [], [1, ["a"]], {"a": {"b": []}}, 10**20)


@dataclass(frozen=True)
class Transcript:
    """One answer and the request that it answers."""

    kind: str
    atoms: tuple[Atom, ...]
    thinking: bool = True
    tools: bool = False
    json_mode: bool = False
    stop: tuple[str, ...] = ()
    is_cut: bool = False
    """Whether the limit of tokens ends it."""

    @property
    def marked(self) -> str:
        """Its text, control tokens spelled out."""
        return b"".join(atom if isinstance(atom, bytes) else atom.encode() for atom in self.atoms).decode(
            "utf-8", errors="replace"
        )

    @property
    def has_look_alikes(self) -> bool:
        """Whether its text alone spells a control token, so that a client may see one."""
        plain = "\0".join(atom for atom in self.atoms if isinstance(atom, str) and not isinstance(atom, Control))
        return any(token in plain for token in CONTROL)

    def body(self, protocol: str) -> dict[str, Any]:
        """The request in a protocol."""
        body: dict[str, Any] = {"thinking": {"type": "enabled" if self.thinking else "disabled"}}
        ask = "Say it" + (" as json" if self.json_mode else "")
        if protocol == "responses":
            body = {"input": ask, "reasoning": {"effort": "low" if self.thinking else "none"}}
        else:
            body["messages"] = [{"role": "user", "content": ask}]
        if protocol == "messages":
            body["max_tokens"] = 4000
        if self.tools:
            body["tools"] = [_tool(protocol, name) for name in NAMES]
        if self.json_mode and protocol == "chat":
            body["response_format"] = {"type": "json_object"}
        if self.json_mode and protocol == "responses":
            body["text"] = {"format": {"type": "json_object"}}
        if self.stop and protocol != "responses":
            body["stop_sequences" if protocol == "messages" else "stop"] = list(self.stop)
        return body

    def fits(self, protocol: str) -> bool:
        """Whether the protocol has the fields that it needs."""
        return not (self.stop and protocol == "responses") and not (self.json_mode and protocol == "messages")


def make_transcripts(count: int, seed: int = 6) -> list[Transcript]:
    """Transcripts of every kind, in turn."""
    makers = list(_MAKERS.items())
    return [
        maker(kind, random.Random(f"{seed} {i}"))
        for i, (kind, maker) in zip(range(count), _endless(makers), strict=False)
    ]


class Speller:
    """From atoms to ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        single = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
        self._byte_ids = [single[bytes([byte])] for byte in range(256)]

    def spell(self, atoms: Sequence[Atom]) -> list[int]:
        """As the tokenizer would."""
        return [token for atom in atoms for token in self._ids(atom)]

    def by_bytes(self, atoms: Sequence[Atom]) -> list[int]:
        """Every text in single bytes."""
        return [
            token
            for atom in atoms
            for token in (self._bytes(_raw(atom)) if not isinstance(atom, Control) else self._ids(atom))
        ]

    def at_random(self, atoms: Sequence[Atom], rng: random.Random) -> list[int]:
        """Text in pieces of a few bytes, each by its own tokens; some by bytes."""
        ids: list[int] = []
        for atom in atoms:
            if isinstance(atom, Control):
                ids += self._ids(atom)
                continue
            rest = _raw(atom)
            while rest:
                size = rng.choice((1, 2, 3, 5, 8, 13, 200))
                ids += self._piece(rest[:size])
                rest = rest[size:]
        return ids

    def marker_splits(self, atoms: Sequence[Atom]) -> Iterator[list[int]]:
        """Every spelling in which the text around one control token, as far as its tag goes, is cut at one byte."""
        for place, atom in enumerate(atoms):
            if not isinstance(atom, Control):
                continue
            for side in (place - 1, place + 1):
                if not 0 <= side < len(atoms) or isinstance(atoms[side], Control):
                    continue
                raw = _raw(atoms[side])
                reach = range(max(1, len(raw) - 3), len(raw)) if side < place else range(1, min(len(raw), 24))
                for cut in reach:
                    yield [
                        *self.spell(atoms[:side]),
                        *self._piece(raw[:cut]),
                        *self._piece(raw[cut:]),
                        *self.spell(atoms[side + 1 :]),
                    ]

    def _ids(self, atom: Atom) -> list[int]:
        if isinstance(atom, bytes):
            return self._bytes(atom)
        return [self._tokenizer.token_id(atom)] if isinstance(atom, Control) else self._tokenizer.encode(atom)

    def _piece(self, raw: bytes) -> list[int]:
        try:
            return self._tokenizer.encode(raw.decode())
        except UnicodeDecodeError:
            return self._bytes(raw)

    def _bytes(self, raw: bytes) -> list[int]:
        return [self._byte_ids[byte] for byte in raw]


def _raw(atom: Atom) -> bytes:
    return atom if isinstance(atom, bytes) else atom.encode()


def _endless(items: list[Any]) -> Iterator[Any]:
    while True:
        yield from items


def _tool(protocol: str, name: str) -> dict[str, Any]:
    if protocol == "messages":
        return {"name": name, "input_schema": PARAMETERS}
    function = {"name": name, "parameters": PARAMETERS}
    return {"type": "function", "function": function} if protocol == "chat" else {"type": "function", **function}


def _text(rng: random.Random, words: Sequence[str] = WORDS, most: int = 8) -> str:
    return "".join(rng.choice(words) for _ in range(rng.randint(0, most)))


def _join(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    """Neighbouring texts as one, without empty ones."""
    joined: list[Atom] = []
    for atom in atoms:
        last = joined[-1] if joined else b""
        if (
            isinstance(atom, str)
            and isinstance(last, str)
            and not isinstance(atom, Control)
            and not isinstance(last, Control)
        ):
            joined[-1] = last + atom
        elif atom:
            joined.append(atom)
    return tuple(joined)


def _opening(rng: random.Random, thinking: bool, words: Sequence[str] = WORDS) -> list[Atom]:
    return [_text(rng, words), END_THINK] if thinking else []


def _call(rng: random.Random) -> list[Atom]:
    atoms: list[Atom] = ["<", DSML, f'invoke name="{rng.choice(NAMES)}">\n']
    for number in range(rng.randint(0, 3)):
        is_string = rng.random() < 0.5
        value = _text(rng) if is_string else json.dumps(rng.choice(JSON_VALUES), ensure_ascii=rng.random() < 0.5)
        kind = "true" if is_string else "false"
        atoms += ["<", DSML, f'parameter name="{rng.choice("ab你")}{number}" string="{kind}">{value}']
        atoms += ["</", DSML, "parameter>\n"]
    return [*atoms, "</", DSML, "invoke>\n"]


def _block(rng: random.Random) -> list[Atom]:
    calls = [atom for _ in range(rng.randint(1, 3)) for atom in _call(rng)]
    return ["\n\n<", DSML, "tool_calls>\n", *calls, "</", DSML, "tool_calls>"]


def _answer(kind: str, rng: random.Random) -> Transcript:
    thinking = rng.random() < 0.7
    return Transcript(kind, _join([*_opening(rng, thinking), _text(rng, most=20), EOS]), thinking, rng.random() < 0.5)


def _calls(kind: str, rng: random.Random) -> Transcript:
    thinking = rng.random() < 0.7
    return Transcript(kind, _join([*_opening(rng, thinking), _text(rng), *_block(rng), EOS]), thinking, tools=True)


def _call_while_thinking(kind: str, rng: random.Random) -> Transcript:
    return Transcript(kind, _join([_text(rng), *_block(rng), EOS]), tools=True)


def _json(kind: str, rng: random.Random) -> Transcript:
    value = {name: rng.choice(JSON_VALUES) for name in ("a", "你", 'q"')[: rng.randint(0, 3)]}
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2)))
    if rng.random() < 0.3:
        text = f"```json\n{text}\n```"
    thinking = rng.random() < 0.5
    return Transcript(kind, _join([*_opening(rng, thinking), text, EOS]), thinking, json_mode=True)


def _stop(kind: str, rng: random.Random) -> Transcript:
    thinking, answer = rng.random() < 0.7, _text(rng, most=20)
    places = [rng.randrange(len(answer)) for _ in range(rng.randint(1, 4))] if answer else []
    stop = {answer[place : place + rng.randint(1, 6)] for place in places} | {rng.choice(("STOP", "\n\n", "<", "😀"))}
    return Transcript(
        kind, _join([*_opening(rng, thinking), answer, EOS]), thinking, rng.random() < 0.3, stop=tuple(sorted(stop))
    )


def _damaged(kind: str, rng: random.Random) -> Transcript:
    atoms = [*_opening(rng, True), _text(rng), *_block(rng), _text(rng)]
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(atoms))
        extra: list[Atom] = rng.choice(
            [
                [],
                [THINK],
                [END_THINK],
                [DSML],
                ["</", DSML, "tool_calls>"],
                ["<", DSML, "x y"],
                ["</", DSML, "invoke>"],
                [USER],
            ]
        )
        atoms[place : place + rng.randint(0, 2)] = extra
    renamed = [
        atom.replace("tool_calls", rng.choice(("tool_calls", "function_calls", "tool_call")))
        if isinstance(atom, str) and not isinstance(atom, Control) and rng.random() < 0.3
        else atom
        for atom in atoms
    ]
    return Transcript(kind, _join([*renamed, EOS]), rng.random() < 0.8, tools=rng.random() < 0.8)


def _not_offered(kind: str, rng: random.Random) -> Transcript:
    return Transcript(kind, _join([*_opening(rng, True), _text(rng), *_block(rng), _text(rng), EOS]))


def _unfinished(kind: str, rng: random.Random) -> Transcript:
    atoms = _join([*_opening(rng, True), _text(rng), *_block(rng)])
    place = rng.randrange(len(atoms))
    last = atoms[place]
    if isinstance(last, str) and not isinstance(last, Control):
        last = last[: rng.randint(1, len(last))]
    return Transcript(kind, (*atoms[:place], last), tools=rng.random() < 0.8, is_cut=True)


def _half_characters(kind: str, rng: random.Random) -> Transcript:
    atoms: list[Atom] = [
        *_opening(rng, True),
        _text(rng),
        "x😀".encode()[: rng.randint(1, 4)],
        rng.choice((" ", "é", "")),
    ]
    if rng.random() < 0.5:
        atoms += [bytes(rng.randrange(256) for _ in range(rng.randint(1, 6))), _text(rng)]
    return Transcript(kind, _join([*atoms, *rng.choice(([EOS], []))]), is_cut=rng.random() < 0.3)


def _look_alike(kind: str, rng: random.Random) -> Transcript:
    words = (*LOOK_ALIKES, *WORDS[:12])
    tail: list[Atom] = _block(rng) if rng.random() < 0.3 else []
    return Transcript(
        kind,
        _join([*_opening(rng, True, words), _text(rng, words, 12), *tail, EOS]),
        tools=bool(tail) or rng.random() < 0.5,
    )


_MAKERS = {
    "answer": _answer,
    "calls": _calls,
    "damaged": _damaged,
    "json": _json,
    "stop": _stop,
    "look-alike": _look_alike,
    "unfinished": _unfinished,
    "call while thinking": _call_while_thinking,
    "not offered": _not_offered,
    "half characters": _half_characters,
}
