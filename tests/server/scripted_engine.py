"""A scripted model: an engine that says what a test wants said, when it wants it said, behind the real server.

In an asynchronous test, by the fixtures of `tests/server/conftest.py`:

    async with scripted("r</think>hello" + EOS) as up:        # no socket; every request gets these ids
        await up.json("/v1/chat/completions", messages=[...])
    with live(Script(ids, delay_s=0.01)) as up:               # a server at up.url on loopback, in a thread
        ...

What is said is markup (control spellings are control tokens), a list of ids, a `Script`, or a function from `Request`
to one of these, such as `answers_by_prompt(tokenizer, {"weather": CALL, "": "hello" + EOS})`. A script says how many
ids come in each step (speculation gives several), what each step waits for, and how it ends:

    Script(ids)                                 # one id a step; ends with "stop" after the last, or at EOS
    Script(ids, step_sizes=(3, 1, 2))           # three at once, then one, then two, and again
    Script(ids, delay_s=0.05, delays_s={7: 2})  # 50 ms before each step, two seconds before that of id 7
    Script(ids, is_endless=True)                # again and again until max_tokens, a stop or a cancel
    Script(ids, error=("out of order", "engine"))  # an error of this kind after the last id

As a real engine does, it stops at EOS (unless `ignore_eos`), at `stop_token_ids` and at `max_tokens`, and a cancelled
request ends at the next step with the ids so far. `up.engine` remembers `requests` that came and `cancelled` ones with
the reason, and does on demand: `failing`, `refuses`, `ends`, `cached_len`, `drafts`, `logprobs`; `said` may be changed.

In a process of its own, to be killed: `EngineProcess(scripted_spec("hello" + EOS, step_s=0.01))`. For a browser:

    PYTHONPATH=src:. python -m tests.server.scripted_server --port 8123 --step-s 0.03 'weather=r</think>It rains.'
"""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import benthic
from benthic.engine.config import EngineConfig
from benthic.engine.factory import BuiltEngine
from benthic.engine.messages import EngineFacts, EngineSpec, PauseMode
from benthic.engine.request import (
    ErrorKind,
    Event,
    FinalOutput,
    FinishReason,
    Request,
    RequestReport,
    RowExtras,
    TokenEvent,
    TokenLogprobs,
)
from benthic.engine.stats import EngineStats
from benthic.engine.weight_versions import WeightUpdate
from benthic.errors import CapacityError, CheckpointError, RequestError
from benthic.text.tokenizer import Tokenizer
from tests.engine.fakes import EngineStub

TINY = Path(benthic.__file__).parent / "assets" / "tiny"
CONTEXT_LEN = 512
EOS_ID = 1
"""Of the bundled tokenizer, as of the family's."""
FACTORY = "tests.server.scripted_engine:build_scripted"
_LONGEST_NAP_S = 0.005
"""Cancels are seen between steps, so a step never waits longer."""


@dataclass(frozen=True)
class Script:
    """What one answer says and when."""

    ids: Sequence[int]
    step_sizes: tuple[int, ...] = (1,)
    """Ids in each step; begins anew when it is through."""
    delay_s: float = 0.0
    """Before each step."""
    delays_s: Mapping[int, float] = field(default_factory=dict)
    """Before the step that brings this id (by index), in place of `delay_s`."""
    is_endless: bool = False
    error: tuple[str, ErrorKind] | None = None
    """How it ends after its last id; None: with "stop"."""

    def steps(self) -> Iterator[tuple[int, ...]]:
        """The ids of each step."""
        ids = itertools.cycle(self.ids) if self.is_endless else iter(self.ids)
        for size in itertools.cycle(self.step_sizes):
            step = tuple(itertools.islice(ids, size))
            if not step:
                return
            yield step


Said = Script | Sequence[int] | str
"""A string is markup."""
Sayings = Said | Callable[[Request], Said]


def answers_by_prompt(tokenizer: Tokenizer, answers: Mapping[str, Said]) -> Callable[[Request], Said]:
    """Chooses by the prompt: the answer of the first key that stands in its text. "" stands in every text."""

    def answer(request: Request) -> Said:
        text = tokenizer.decode(list(request.prompt_ids))
        return next(said for key, said in answers.items() if key in text)

    return answer


@dataclass
class _Live:
    """An answer that is being given."""

    request: Request
    script: Script
    steps: Iterator[tuple[int, ...]]
    due_s: float
    ids: list[int] = field(default_factory=list)


class ScriptedEngine(EngineStub):
    """An engine that answers as it is told and remembers what was asked; see the head of this file."""

    def __init__(
        self, said: Sayings, *, tokenizer: Tokenizer, step_s: float = 0.0, context_len: int = CONTEXT_LEN
    ) -> None:
        super().__init__(step_s)
        self._tokenizer = tokenizer
        self.said = said
        """May be changed between requests."""
        self.max_model_len = context_len
        self.requests: list[Request] = []
        self.failing = False
        self.cached_len = 0
        self.drafts = (0, 0)
        """Drafted and accepted tokens of every request."""
        self.refuses: RequestError | CapacityError | None = None
        """What `add` raises."""
        self.ends: tuple[str, ErrorKind] | None = None
        """The error that ends every request after its first token."""
        self.logprobs: Callable[[int, int], TokenLogprobs] = _falling_logprobs
        """From an id and the number of alternatives."""

    def add(self, request: Request) -> None:
        self.requests.append(request)
        if self.refuses is not None:
            raise self.refuses
        script = self._script_for(request)
        live = _Live(request, script, script.steps(), 0.0)
        live.due_s = time.monotonic() + self._delay_s(live)
        self.live[request.request_id] = live

    def pause(self, mode: PauseMode) -> list[Event]:
        self.pause_mode = mode
        names = list(self.live) if mode == "abort" else []
        return [self._end(name, "cancelled") for name in names]

    def update_weights(self, source: Any, version: int | None = None, checksum: str | None = None) -> WeightUpdate:
        if not Path(source).exists():
            raise CheckpointError(f"there is no checkpoint at {source}; give an existing folder")
        return self.take_content(str(source), version)

    def describe(self) -> str:
        return f"scripted: {len(self.live)} live"

    def check_laws(self) -> None: ...

    def step(self) -> list[Event]:
        time.sleep(self.step_s)
        if self.failing:
            raise RuntimeError("scripted failure")
        events: list[Event] = [self._end(name, reason) for name, reason in self.cancelled.items() if name in self.live]
        if self.pause_mode is not None:
            return events
        now = time.monotonic()
        due = [name for name, live in self.live.items() if live.due_s <= now]
        if not due and not events and self.live:
            time.sleep(min(_LONGEST_NAP_S, min(live.due_s for live in self.live.values()) - now))
        for request_id in due:
            events += self._advance(request_id)
        return events

    def fail_all(self, error: str) -> list[Event]:
        return [self._end(name, "error", error) for name in list(self.live)]

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.live), weight_version=self.version)

    def _script_for(self, request: Request) -> Script:
        said = self.said(request) if callable(self.said) else self.said
        if isinstance(said, str):
            said = self._tokenizer.encode_markup(said)
        if isinstance(said, Script):
            return said
        return Script(said, is_endless=request.params.ignore_eos)

    def _delay_s(self, live: _Live) -> float:
        return live.script.delays_s.get(len(live.ids), live.script.delay_s)

    def _advance(self, request_id: str) -> list[Event]:
        live = self.live[request_id]
        params = live.request.params
        if params.max_tokens == 0:
            return [self._end(request_id, "length")]
        if self.ends is not None and live.ids:
            return [self._end(request_id, "error", *self.ends)]
        events: list[Event] = []
        for token in next(live.steps, ()):
            logprobs = None if params.logprobs is None else self.logprobs(token, params.logprobs)
            events.append(TokenEvent(request_id, len(live.ids), token, logprobs))
            live.ids.append(token)
            if token in params.stop_token_ids or (token == EOS_ID and not params.ignore_eos):
                return [*events, self._end(request_id, "stop")]
            if len(live.ids) == params.max_tokens:
                return [*events, self._end(request_id, "length")]
        live.due_s = time.monotonic() + self._delay_s(live)
        if not live.script.is_endless and len(live.ids) == len(live.script.ids):
            return [*events, self._end_of_script(request_id, live.script)]
        return events

    def _end_of_script(self, request_id: str, script: Script) -> Event:
        return self._end(request_id, "stop") if script.error is None else self._end(request_id, "error", *script.error)

    def _end(
        self, request_id: str, reason: FinishReason, error: str | None = None, kind: ErrorKind = "engine"
    ) -> Event:
        live = self.live.pop(request_id)
        request, ids = live.request, tuple(live.ids)
        prompt_len = len(request.prompt_ids)
        num_scored = 0 if request.params.prompt_logprobs is None else prompt_len - 1
        routes = np.arange((prompt_len + len(ids) - 1) * 2, dtype=np.uint16).reshape(-1, 1, 2)
        return FinalOutput(
            request_id=request_id,
            token_ids=ids,
            logprobs=None,
            finish_reason=reason,
            error=error,
            error_kind=kind if reason == "error" else None,
            prompt_len=prompt_len,
            cached_len=self.cached_len,
            prompt_logprobs=(TokenLogprobs(-0.5, ()),) * num_scored,
            report=RequestReport(
                prompt_len=prompt_len,
                usable_match=self.cached_len,
                drafted=self.drafts[0],
                accepted=self.drafts[1],
                weight_versions=(self.version,),
            ),
            extras=RowExtras(routes, None) if request.params.return_routes else None,
        )


def _falling_logprobs(token: int, num_alternatives: int) -> TokenLogprobs:
    return TokenLogprobs(-0.5, tuple((token + i, -0.5 - i) for i in range(num_alternatives)))


def scripted_spec(markup: str, *, step_s: float = 0.0, engine: EngineConfig | None = None) -> EngineSpec:
    """For an engine in a child process that answers every request with this markup; it restarts in a moment."""
    model = json.dumps({"markup": markup, "step_s": step_s})
    return EngineSpec(model=model, factory=FACTORY, engine=engine or EngineConfig())


def build_scripted(spec: EngineSpec) -> BuiltEngine:
    """In the child: makes what `scripted_spec` describes."""
    options = json.loads(spec.model)
    tokenizer = Tokenizer(TINY)
    engine = ScriptedEngine(options["markup"], tokenizer=tokenizer, step_s=options["step_s"])
    facts = EngineFacts(engine.max_model_len, tokenizer.vocab_size, spec.engine, str(TINY), pid=os.getpid())
    return BuiltEngine(engine, facts)
