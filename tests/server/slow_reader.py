"""What a reply says, by regular expressions over its whole text, written from the description of the format alone.

Control tokens are private characters here, so that text that spells one is no markup. Slow, and for whole replies only.
"""

import json
import re
from dataclasses import dataclass, field

from tests.server.transcripts import DSML, END_THINK, THINK, Control, Transcript

D, C, T = "\ue000", "\ue001", "\ue002"
_PRIVATE = {DSML: D, END_THINK: C, THINK: T}
_TAG = rf"</?{D}[^<>\n{D}{C}]{{0,256}}>"
_OPENING = rf"<{D}(?!invoke\b|parameter\b)[^</>\n{D}{C}]{{0,256}}>"
_CALL = re.compile(rf"(?:{_OPENING}\s*)?<{D}invoke\b[^<>\n{D}{C}]*>")
_EMPTY_BLOCK = re.compile(rf"{_OPENING}\s*</{D}[^<>\n{D}{C}]{{0,256}}>")
_UNFINISHED = re.compile(rf"</?{D}[^<>\n{D}{C}]{{0,256}}\Z")
_INVOKE = re.compile(rf'<{D}invoke name="([^"]*)"\s*(/?)>')
_VALUE = re.compile(
    rf'<{D}parameter name="([^"]*)" string="(true|false)">((?:(?!</{D}).)*)</{D}parameter>\s*', re.DOTALL
)
_END = re.compile(rf"</{D}(?!invoke\b|parameter\b)[^<>\n]*>")
_END_OF_CALL = re.compile(rf"\s*</{D}invoke>")


@dataclass
class Expected:
    """What a client must read."""

    reasoning: str
    content: str
    calls: list[tuple[str, str]] | None = field(default_factory=list)
    """None: there are calls, and they are damaged."""


def read_slowly(transcript: Transcript) -> Expected:
    """The reply that a transcript spells."""
    whole = b"".join(
        atom
        if isinstance(atom, bytes)
        else _PRIVATE.get(atom, "").encode()
        if isinstance(atom, Control)
        else atom.encode()
        for atom in transcript.atoms
    ).decode("utf-8", errors="replace")
    text, calls = _split_calls(whole, transcript) if transcript.tools else (_without_calls(whole), [])
    text = _EMPTY_BLOCK.sub("", text)
    text = re.sub(rf"{_TAG}", "", text)
    text = _UNFINISHED.sub("", text) if not calls else text
    reasoning, content = _split_thinking(text, transcript.thinking)
    content = _shown(content).lstrip("\n")
    if transcript.json_mode:
        content = re.sub(r"\A```json\n|\n```\Z", "", content)
    elif calls != []:
        content = content.rstrip("\n")
    return Expected(_shown(reasoning).strip("\n"), _before_stop(content, transcript.stop), calls)


def _before_stop(text: str, stop: tuple[str, ...]) -> str:
    """Up to the stop string that is complete first; of those that end together, the one that begins first."""
    ends = [(text.find(string) + len(string), text.find(string)) for string in stop if string in text]
    return text[: min(ends)[1]] if ends else text


def _split_thinking(text: str, thinking: bool) -> tuple[str, str]:
    if not thinking:
        return "", text
    reasoning, _, content = text.partition(C)
    return reasoning, content


def _shown(text: str) -> str:
    return re.sub(rf"</?{D}|[{D}{C}{T}]", "", text)


def _split_calls(text: str, transcript: Transcript) -> tuple[str, list[tuple[str, str]] | None]:
    found = _CALL.search(text)
    if found is None:
        return text, []
    return text[: found.start()], _read_calls(text[found.start() :])


def _read_calls(text: str) -> list[tuple[str, str]] | None:
    calls = []
    for part in re.split(rf"(?=<{D}invoke\b)", _END.split(text)[0])[1:]:
        invoke = _INVOKE.match(part)
        if invoke is None:
            return None
        pairs, place = [], invoke.end()
        while (value := _VALUE.match(part, re.compile(r"\s*").match(part, place).end())) is not None:  # type: ignore[union-attr]
            raw = json.dumps(value[3], ensure_ascii=False) if value[2] == "true" else value[3]
            pairs.append(f"{json.dumps(value[1], ensure_ascii=False)}: {raw}")
            place = value.end()
        if not invoke[2] and not _END_OF_CALL.match(part, place):
            return None
        calls.append((invoke[1], "{" + ", ".join(pairs) + "}"))
    return calls


def _without_calls(text: str) -> str:
    """Text with each call, or block of calls, cut out up to where it ends, thinking ends, or the reply does."""
    while (found := _CALL.search(text)) is not None:
        has_block = not found[0].startswith(f"<{D}invoke")
        end = re.compile(_END.pattern if has_block else rf"{_END.pattern}|</{D}invoke>")
        limit = text.find(C, found.end())
        rest = text[found.end() :] if limit < 0 else text[found.end() : limit]
        stop = end.search(rest)
        if found[0].endswith("/>") and not has_block:
            text = text[: found.start()] + text[found.end() :]
            continue
        after = rest[stop.end() :] if stop is not None else ""
        text = text[: found.start()] + after + ("" if limit < 0 else text[limit:])
    return text
