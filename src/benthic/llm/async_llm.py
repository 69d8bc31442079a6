"""The same front door for asyncio: many callers at once, batched together.

    async with benthic.AsyncLLM("tiny") as llm:
        output = await llm.generate("2 + 2 =", benthic.SamplingParams(max_tokens=8))
        async for delta in llm.stream("Once upon a time"):
            print(delta.text, end="")

The engine runs in a thread; one more thread hands its events to the event loop, where they are routed to whoever
waits for them. A caller whose task is cancelled, or who leaves a stream early, ends its requests.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from benthic.engine.engine import Engine
from benthic.engine.messages import PauseMode
from benthic.engine.request import Event, FinalOutput, FinishReason, TokenEvent, TokenLogprobs
from benthic.engine.sampling import SamplingParams
from benthic.engine.stats import EngineStats
from benthic.engine.worker import EngineWorker
from benthic.errors import RequestError
from benthic.llm.answers import OpenAnswer, OpenPrompt, RequestOutput
from benthic.llm.front_door import FrontDoor
from benthic.llm.grammars import ResponseFormat, constrained
from benthic.llm.prompts import Prompt, check_prompt

_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionDelta:
    """What one event adds to an answer of a stream."""

    index: int
    """Which of the n answers."""
    text: str
    """Text that is now certain; may be empty."""
    token_ids: tuple[int, ...]
    """The token of the event; none at the end."""
    logprobs: TokenLogprobs | None = None
    """Of that token, if asked for."""
    finish_reason: FinishReason | None = None
    """Set in an answer's last delta."""
    stop_reason: int | str | None = None
    """The stop token or stop string that ended it."""


class AsyncLLM(FrontDoor):
    """A model, its tokenizer and an engine in a thread of its own.

    The arguments are those of `benthic.LLM`. All methods belong to one event loop: that of the first call.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        ConfigError: an unknown or contradictory setting.
    """

    def _take_engine(self, engine: Engine) -> None:
        self._engine = engine
        self._worker = EngineWorker(engine)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiver: threading.Thread | None = None
        self._mailboxes: dict[str, asyncio.Queue[Event]] = {}
        self._is_closed = False

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return self._engine.max_model_len

    @property
    def stats(self) -> EngineStats:
        """The engine's figures after its latest step."""
        return self._worker.stats

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: ResponseFormat | None = None,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> RequestOutput:
        """Continues one prompt; call it many times at once to have many continued together.

        Args:
            prompt: text or token ids.
            params: None: the defaults.
            response_format: what the text must conform to, as in a chat request; nothing tells the
                model of it. An answer cut off by its length is unfinished.
            priority: -100 to 100, higher goes first.
            cache_salt: only requests of the same salt share cached prefixes.
            timeout_s: an answer that is not done after so many seconds ends with an `error`; None: the engine's own.

        Raises:
            RequestError: the prompt or a parameter is invalid. An answer that failed later says so in its `error`.
        """
        asked = await self._constrain(params, response_format)
        opened = self._read(prompt, asked, priority=priority, cache_salt=cache_salt, timeout_s=timeout_s)
        async with aclosing(self._events(opened)) as events:
            async for answer, event in events:
                answer.take(event)
        return opened.output()

    async def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: ResponseFormat | None = None,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> AsyncIterator[CompletionDelta]:
        """Continues one prompt and yields what each event adds, of all n answers as it comes.

        Leaving the loop early ends the request once the iterator is closed or collected.

        Raises:
            RequestError: as `generate`.
            Cancelled, CapacityError, EngineError: an answer ended with an error; see `CompletionOutput.error_kind`.
        """
        asked = await self._constrain(params, response_format)
        opened = self._read(prompt, asked, priority=priority, cache_salt=cache_salt, timeout_s=timeout_s)
        async with aclosing(self._events(opened)) as events:
            async for answer, event in events:
                yield _delta(answer, event)
                if answer.failure is not None:
                    raise answer.failure

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stops between two tokens: "abort" ends what runs, "keep" lets it wait with its cache, "retract" without."""
        self._start()
        await asyncio.wrap_future(self._worker.pause(mode))

    async def resume(self) -> None:
        """Goes on after a pause."""
        self._start()
        await asyncio.wrap_future(self._worker.resume())

    async def update_weights(
        self,
        source: str | Path | Mapping[str, torch.Tensor],
        version: int | None = None,
        checksum: str | None = None,
    ) -> int:
        """Takes other weights between two tokens; running requests go on under them.

        Args:
            source: a checkpoint folder, a file of `write_weights`, or a state dict, left alone until this returns.
            version: stamped on the tokens; None: one more than any so far. Versions go forward, and back only to the
                very weights that had that version.
            checksum: of `weights_checksum`; other weights are refused.

        Returns:
            The version in force.

        Raises:
            CheckpointError: they cannot be taken; then the old ones stay.
            RequestError: the version stood for other weights, or an argument is wrong.
            EngineError: something else failed; the old weights stay unless it is WeightsLostError.
        """
        self._start()
        in_force = await asyncio.wrap_future(self._worker.update_weights(source, version, checksum))
        return int(in_force)

    async def flush(self) -> None:
        """Empties the prefix cache of all that no running request holds."""
        self._start()
        await asyncio.wrap_future(self._worker.flush())

    async def close(self) -> None:
        """Ends what runs with an error, and the threads. Closing twice is fine; other calls then raise RequestError."""
        if self._is_closed:
            return
        self._is_closed = True
        await asyncio.to_thread(self._worker.close)
        await asyncio.to_thread(self._formats.close)
        if self._receiver is not None:
            await asyncio.to_thread(self._receiver.join)

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _constrain(
        self, params: SamplingParams | None, response_format: ResponseFormat | None
    ) -> SamplingParams | None:
        self._start()
        waiting = self._formats.submit(response_format)
        if waiting is None:
            return params
        ready = await asyncio.wrap_future(waiting)
        return constrained(SamplingParams() if params is None else params, ready)

    def _read(self, prompt: Prompt, params: SamplingParams | None, **fields: Any) -> OpenPrompt:
        self._start()
        opened = self._reader.read(_plain(prompt), SamplingParams() if params is None else params, **fields)
        check_prompt(self._engine, opened)
        return opened

    async def _events(self, opened: OpenPrompt) -> AsyncGenerator[tuple[OpenAnswer, Event], None]:
        """Runs a prompt to its end. However it is left, nothing of it runs on."""
        mailbox: asyncio.Queue[Event] = asyncio.Queue()
        live = {answer.request.request_id: answer for answer in opened.answers}
        try:
            for name, answer in live.items():
                self._mailboxes[name] = mailbox
                self._worker.add(answer.request)
            while live:
                event = await mailbox.get()
                answer = live[event.request_id]
                if isinstance(event, FinalOutput):
                    del live[event.request_id], self._mailboxes[event.request_id]
                elif answer.stop_string is not None:
                    continue  # it came before the engine heard that the answer is complete
                yield answer, event
                if isinstance(event, TokenEvent) and answer.stop_string is not None:
                    self._worker.cancel(event.request_id, "stop")
        finally:
            for name in live:
                if self._mailboxes.pop(name, None) is not None:
                    self._worker.cancel(name)

    def _start(self) -> None:
        """Starts the threads at the first call."""
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise RequestError("this AsyncLLM is closed; make a new one")
        if self._loop is None:
            self._loop = loop
            self._worker.start()
            self._receiver = threading.Thread(target=self._receive, args=(loop,), name="benthic-async-llm", daemon=True)
            self._receiver.start()
        if loop is not self._loop:
            raise RequestError("this AsyncLLM runs on another event loop; make one for each loop")

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._notice:
            while True:
                # In this order: what the worker said before its end is still delivered.
                was_alive = self._worker.is_alive
                events = self._worker.receive(_POLL_S)
                if not events and not was_alive:
                    return
                try:
                    loop.call_soon_threadsafe(self._route, events)
                except RuntimeError:  # the loop is closed: nobody listens any more
                    return

    def _route(self, events: Sequence[Event]) -> None:
        for event in events:
            mailbox = self._mailboxes.get(event.request_id)
            if mailbox is not None:
                mailbox.put_nowait(event)


def _delta(answer: OpenAnswer, event: Event) -> CompletionDelta:
    text = answer.take(event)
    if isinstance(event, TokenEvent):
        return CompletionDelta(index=answer.index, text=text, token_ids=(event.token_id,), logprobs=event.logprobs)
    stopped = answer.stop_string if answer.stop_string is not None else event.stop_token_id
    return CompletionDelta(
        index=answer.index, text=text, token_ids=(), finish_reason=answer.finish_reason, stop_reason=stopped
    )


def _plain(prompt: Any) -> Any:
    """A tensor or array of ids as a list."""
    return prompt.tolist() if hasattr(prompt, "tolist") else prompt
