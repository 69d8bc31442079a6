"""The front door: a model in this process that continues text or tokens.

    with benthic.LLM("tiny") as llm:
        [answer] = llm.generate(["2 + 2 ="], benthic.SamplingParams(max_tokens=8, temperature=0))
        print(answer.outputs[0].text)

Strings live here and not in the engine: encoding of prompts, text of answers, stop strings.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from benthic.engine.config import engine_config
from benthic.engine.cpu import prepare_products
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, FinishReason, Request, TokenEvent
from benthic.engine.sampling import SamplingParams, choice_params
from benthic.engine.scoring import packed_logits, packed_logprobs
from benthic.errors import ConfigError, PromptTooLong, RequestError
from benthic.models.checkpoint.load import load_model, resolve
from benthic.models.numerics import Policy
from benthic.models.transformer import Transformer
from benthic.text.detokenize import Detokenizer
from benthic.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    """Without the end token, and cut before a stop string."""
    token_ids: list[int]
    """All generated tokens, the stopping ones included."""
    logprobs: list[float] | None
    """Natural log-probability of each token, if asked for: of the raw distribution, before temperature and cuts."""
    top_logprobs: list[dict[int, float]] | None
    """At each position the most likely tokens, best first, as many as `SamplingParams.logprobs` asked for."""
    finish_reason: FinishReason
    """"stop": end token, stop token or stop string; "length": max_tokens or a full context; "error": see `error`."""
    stop_reason: int | str | None
    """The stop token or stop string that ended it."""
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its answers."""

    prompt: str | None
    """The prompt, where it was given as text."""
    prompt_token_ids: list[int]
    cached_len: int
    """Prompt tokens that were found in the cache instead of computed."""
    outputs: list[CompletionOutput]


class LLM:
    """A model, its tokenizer and an engine.

    Calls from several threads take turns. On CPU the engine sets torch's thread count for the whole process (1 unless
    `num_threads` is given).

    Args:
        model: a checkpoint folder, the name of a bundled model ("tiny"), or a loaded Transformer.
        device, dtype, numerics: see `benthic.load_model`; dtype may be a name such as "bfloat16".
        tokenizer: overrides the checkpoint's; needed with a loaded Transformer if text is to be used.
        engine: fields of `benthic.engine.EngineConfig`, such as max_num_seqs or max_model_len.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        ConfigError: an unknown or contradictory setting.
    """

    def __init__(
        self,
        model: str | Path | Transformer,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        numerics: Policy | None = None,
        tokenizer: Tokenizer | None = None,
        **engine: Any,
    ) -> None:
        config = engine_config(**engine)
        prepare_products(config.num_threads)
        if isinstance(model, Transformer):
            if (device, dtype, numerics) != (None, None, None):
                raise ConfigError("device, dtype and numerics are those of the loaded model; leave them out beside it")
            self._model = model
        else:
            self._model = load_model(model, device=device, dtype=dtype, numerics=numerics)
            tokenizer = tokenizer or Tokenizer(resolve(model))
        if tokenizer is not None:
            tokenizer.check_model(self._model.config.vocab_size, self._model.config.eos_token_id)
        self._model.freeze()
        self._tokenizer = tokenizer
        self._engine: Engine | None = Engine(self._model, config)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._owner: int | None = None

    @property
    def model(self) -> Transformer:
        """The model; its weights must not change while requests run."""
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            RequestError: there is none.
        """
        if self._tokenizer is None:
            raise RequestError("this LLM has no tokenizer; give prompts as token ids, or a tokenizer to LLM(...)")
        return self._tokenizer

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return self._open_engine().max_model_len

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continues prompts, all at once, and returns their answers in the order of the prompts.

        Args:
            prompts: texts or token ids; text is encoded as it stands, control spellings in it stay text.
            params: for all prompts, or one for each; None: the defaults.

        Raises:
            RequestError: a prompt or parameter is invalid; then nothing is generated.
        """
        tasks = self._tasks(prompts, params)
        with self._turn() as engine:
            for task in tasks:
                task.check(engine)
            for _ in _drive(engine, tasks):
                pass
        return [task.output() for task in tasks]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Continues one prompt and yields its text as it becomes certain; never half a character.

        Leaving the loop early ends the request. Other calls wait until the stream is read or closed.

        Raises:
            RequestError: the prompt or a parameter is invalid, n is not 1, or the request failed.
        """
        [task] = self._tasks([prompt], params)
        if len(task.choices) != 1:
            raise RequestError(f"n is {len(task.choices)}; a stream has 1 answer", param="n")
        with self._turn() as engine:
            task.check(engine)
            yield from (text for text in _drive(engine, [task]) if text)
        error = task.choices[0].final.error if task.choices[0].final else None
        if error is not None:
            raise RequestError(error)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Next-token logits after each prefix of `ids`, float32 [len, vocab], on the CPU.

        Computed on the packed path, as in training; a row's bits are those that the engine samples from.

        Raises:
            RequestError: no ids, too many, or one outside the vocabulary.
        """
        with self._turn() as engine:
            return packed_logits(self._model, _checked_ids(engine, ids))

    def score(self, ids: Sequence[int]) -> Tensor:
        """log p(ids[t + 1] | ids[0 .. t]) for every t, float32 [len - 1], on the CPU.

        Equal bit for bit to the log-probabilities that the engine reports when it generates these tokens.

        Raises:
            RequestError: no ids, too many, or one outside the vocabulary.
        """
        with self._turn() as engine:
            return packed_logprobs(self._model, _checked_ids(engine, ids))

    def close(self) -> None:
        """Frees the cache. Closing twice is fine; other calls then raise RequestError."""
        self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_engine(self) -> Engine:
        if self._engine is None:
            raise RequestError("this LLM is closed; make a new one")
        return self._engine

    @contextmanager
    def _turn(self) -> Iterator[Engine]:
        """The engine, for one caller at a time."""
        me = threading.get_ident()
        if self._owner == me:
            raise RequestError("a stream of this LLM is open in this thread; read it to its end or close it first")
        with self._lock:
            self._owner = me
            try:
                yield self._open_engine()
            finally:
                self._owner = None

    def _tasks(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list["_Task"]:
        given = prompts.tolist() if hasattr(prompts, "tolist") else prompts
        if not isinstance(given, Sequence):
            raise RequestError(
                f"prompts is {_shown(prompts)}; it must be a text, a list of token ids, or a list of these",
                param="prompts",
            )
        texts = [given] if _is_one_prompt(given) else list(given)
        each = _params_of_each(params, len(texts))
        return [self._task(i, prompt, p) for i, (prompt, p) in enumerate(zip(texts, each, strict=True))]

    def _task(self, place: int, prompt: Any, params: SamplingParams) -> "_Task":
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params[{place}] is {params!r}; it must be a SamplingParams", param="params")
        name = f"prompts[{place}]"
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else _token_ids(prompt, name)
        choices = []
        for index in range(params.n):
            own = choice_params(params, index)
            request = Request(request_id=str(next(self._numbers)), prompt_ids=tuple(ids), params=own)
            choices.append(_Choice(request, index, self._detokenizer(params)))
        return _Task(name, prompt if isinstance(prompt, str) else None, ids, choices)

    def _detokenizer(self, params: SamplingParams) -> Detokenizer | None:
        if self._tokenizer is None:
            if params.stop:
                raise RequestError("stop strings need a tokenizer, and this LLM has none", param="stop")
            return None
        skip = {self._model.config.eos_token_id, *params.stop_token_ids}
        return Detokenizer(self._tokenizer, params.stop, skip)


@dataclass(slots=True)
class _Choice:
    """One request on its way: its text so far and, in the end, its final output."""

    request: Request
    index: int
    detokenizer: Detokenizer | None
    text: str = ""
    final: FinalOutput | None = None

    def take(self, event: TokenEvent) -> str:
        """New text of a token."""
        piece = "" if self.detokenizer is None else self.detokenizer.push([event.token_id])
        self.text += piece
        return piece

    def end(self, final: FinalOutput) -> str:
        """Text that was held back."""
        self.final = final
        piece = "" if self.detokenizer is None else self.detokenizer.flush()
        self.text += piece
        return piece

    @property
    def stop_string(self) -> str | None:
        return None if self.detokenizer is None else self.detokenizer.stopped

    def output(self) -> CompletionOutput:
        final = self.final
        assert final is not None, f"request {self.request.request_id} has no final output"
        logprobs = final.logprobs
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=list(final.token_ids),
            logprobs=None if logprobs is None else [entry.chosen for entry in logprobs],
            top_logprobs=None if logprobs is None else [dict(entry.top) for entry in logprobs],
            finish_reason="stop" if self.stop_string is not None else final.finish_reason,
            stop_reason=self.stop_string if self.stop_string is not None else final.stop_token_id,
            error=final.error,
        )


@dataclass(slots=True)
class _Task:
    """A prompt with its choices; `name` says which prompt it is."""

    name: str
    prompt: str | None
    prompt_ids: list[int]
    choices: list[_Choice]

    def check(self, engine: Engine) -> None:
        """Refuses what the engine would refuse, by name."""
        try:
            engine.check(self.choices[0].request)
        except RequestError as error:
            raise type(error)(f"{self.name}: {error}", param=error.param) from None

    def output(self) -> RequestOutput:
        finals = [choice.final for choice in self.choices if choice.final is not None]
        return RequestOutput(
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            cached_len=max((final.cached_len for final in finals), default=0),
            outputs=[choice.output() for choice in self.choices],
        )


def _drive(engine: Engine, tasks: Sequence[_Task]) -> Iterator[str]:
    """Runs the tasks to their ends and yields text as it comes. Whatever interrupts it, the engine is left empty."""
    todo = iter([choice for task in tasks for choice in task.choices])
    live: dict[str, _Choice] = {}
    try:
        while True:
            # Only what can run soon is queued, so that any number of prompts may be given.
            for choice in itertools.islice(todo, max(0, 2 * engine.config.max_num_seqs - len(live))):
                engine.add(choice.request)
                live[choice.request.request_id] = choice
            if not live:
                return
            for event in engine.step():
                choice = live[event.request_id]
                if isinstance(event, FinalOutput):
                    del live[event.request_id]
                    yield choice.end(event)
                else:
                    yield choice.take(event)
                    if choice.stop_string is not None:
                        engine.cancel(event.request_id, "stop")
    finally:
        if live:
            engine.fail_all("interrupted")


def _is_one_prompt(prompts: Any) -> bool:
    """Whether a text or one list of ids was given instead of a list of prompts."""
    return isinstance(prompts, str) or (len(prompts) > 0 and all(isinstance(item, Integral) for item in prompts))


def _params_of_each(params: Any, count: int) -> list[SamplingParams]:
    """Parameters for `count` prompts, from what a caller gave for all or for each."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or isinstance(params, str | bytes):
        raise RequestError(
            f"params is {_shown(params)}; it must be a SamplingParams, or a list with one for each prompt",
            param="params",
        )
    if len(params) != count:
        raise RequestError(f"there are {len(params)} params for {count} prompts; give one, or one a prompt")
    return list(params)


def _token_ids(ids: Any, name: str) -> list[int]:
    """Plain integers from a list, tuple, tensor or array of integers."""
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        allowed = "a list of token ids" + (", as tokenizer.encode(text) gives" if name == "ids" else " or text")
        raise RequestError(f"{name} is {_shown(ids)}; it must be {allowed}", param=name)
    wrong = next((v for v in values if type(v) is bool or not isinstance(v, Integral)), None)
    if wrong is not None:
        raise RequestError(f"{name} holds {wrong!r}; token ids are integers", param=name)
    return [int(v) for v in values]


def _shown(value: Any) -> str:
    """A wrong argument in a message, short whatever it is."""
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def _checked_ids(engine: Engine, ids: Sequence[int]) -> list[int]:
    """Ids that the packed path can take; a full context needs no room for an answer here."""
    values = _token_ids(ids, "ids")
    if not values:
        raise RequestError("ids is empty; it must hold at least 1 token", param="ids")
    if len(values) > engine.max_model_len:
        raise PromptTooLong(f"ids holds {len(values)} tokens; the context has {engine.max_model_len}", param="ids")
    engine.check_ids(values, "ids")
    return values
