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
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import packed_logits, packed_logprobs
from benthic.errors import RequestError
from benthic.llm.answers import OpenAnswer, OpenPrompt, RequestOutput
from benthic.llm.loading import open_model
from benthic.llm.prompts import Prompt, PromptReader, check_prompt, checked_ids
from benthic.models.numerics import Policy
from benthic.models.transformer import Transformer
from benthic.text.tokenizer import Tokenizer


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
        opened = open_model(model, device=device, dtype=dtype, numerics=numerics, tokenizer=tokenizer, engine=engine)
        self._model = opened.model
        self._reader = PromptReader(opened.tokenizer, self._model.config.eos_token_id)
        self._engine: Engine | None = opened.engine
        self._notice = opened.notice
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
        return self._reader.tokenizer

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
        opened = self._reader.read_all(prompts, params)
        with self._turn() as engine:
            for prompt in opened:
                check_prompt(engine, prompt)
            for _ in _drive(engine, opened):
                pass
        return [prompt.output() for prompt in opened]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """Continues one prompt and yields its text as it becomes certain; never half a character.

        Leaving the loop early ends the request. Other calls wait until the stream is read or closed.

        Raises:
            RequestError: the prompt or a parameter is invalid, n is not 1, or the request failed.
        """
        [opened] = self._reader.read_all([prompt], params)
        if len(opened.answers) != 1:
            raise RequestError(f"n is {len(opened.answers)}; a stream has 1 answer", param="n")
        with self._turn() as engine:
            check_prompt(engine, opened)
            yield from (text for text in _drive(engine, [opened]) if text)
        final = opened.answers[0].final
        if final is not None and final.error is not None:
            raise RequestError(final.error)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Next-token logits after each prefix of `ids`, float32 [len, vocab], on the CPU.

        Computed on the packed path, as in training; a row's bits are those that the engine samples from.

        Raises:
            RequestError: no ids, too many, or one outside the vocabulary.
        """
        with self._turn() as engine:
            return packed_logits(self._model, checked_ids(engine, ids))

    def score(self, ids: Sequence[int]) -> Tensor:
        """log p(ids[t + 1] | ids[0 .. t]) for every t, float32 [len - 1], on the CPU.

        Equal bit for bit to the log-probabilities that the engine reports when it generates these tokens.

        Raises:
            RequestError: no ids, too many, or one outside the vocabulary.
        """
        with self._turn() as engine:
            return packed_logprobs(self._model, checked_ids(engine, ids))

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
        with self._lock, self._notice:
            self._owner = me
            try:
                yield self._open_engine()
            finally:
                self._owner = None


def _drive(engine: Engine, prompts: Sequence[OpenPrompt]) -> Iterator[str]:
    """Runs prompts to their ends and yields text as it comes. Whatever interrupts it, the engine is left empty."""
    todo = iter([answer for prompt in prompts for answer in prompt.answers])
    live: dict[str, OpenAnswer] = {}
    try:
        while True:
            # Only what can run soon is queued, so that any number of prompts may be given.
            for answer in itertools.islice(todo, max(0, 2 * engine.config.max_num_seqs - len(live))):
                engine.add(answer.request)
                live[answer.request.request_id] = answer
            if not live:
                return
            for event in engine.step():
                answer = live[event.request_id]
                yield answer.take(event)
                if isinstance(event, FinalOutput):
                    del live[event.request_id]
                elif answer.stop_string is not None:
                    engine.cancel(event.request_id, "stop")
    finally:
        if live:
            engine.fail_all("interrupted")
