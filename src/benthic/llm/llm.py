"""The front door: a model in this process that continues text or tokens.

    with benthic.LLM("tiny") as llm:
        [answer] = llm.generate(["2 + 2 ="], benthic.SamplingParams(max_tokens=8, temperature=0))
        print(answer.outputs[0].text)

Strings live here and not in the engine: encoding of prompts, text of answers, stop strings.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from torch import Tensor

from benthic.engine.engine import Engine, PauseMode
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import packed_logits, packed_logprobs
from benthic.engine.stats import EngineStats
from benthic.engine.weights import WeightSource
from benthic.errors import RequestError
from benthic.llm.answers import RequestOutput
from benthic.llm.driver import EngineDriver
from benthic.llm.front_door import FrontDoor
from benthic.llm.grammars import ResponseFormat, constrained
from benthic.llm.prompts import Prompt, check_prompt, checked_ids
from benthic.models.transformer import Transformer


class LLM(FrontDoor):
    """A model, its tokenizer and an engine.

    Calls from several threads take turns; `pause`, `resume`, `update_weights`, `flush` and `stats` wait for no turn and
    act between two steps of whatever runs. On CPU the engine sets torch's thread count for the whole process (1 unless
    `num_threads` is given).

    Args:
        model: a checkpoint folder, the name of a bundled model ("tiny"), or a loaded Transformer.
        device, dtype, numerics: see `benthic.load_model`; dtype may be a name such as "bfloat16".
        tokenizer: overrides the checkpoint's; needed with a loaded Transformer, and with a folder that has no
            tokenizer.json, if text is to be used. Without one prompts are token ids and answers have no text.
        engine: fields of `benthic.engine.EngineConfig`, such as max_num_seqs or max_model_len.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        ConfigError: an unknown or contradictory setting.
    """

    def _take_engine(self, engine: Engine) -> None:
        self._driver: EngineDriver | None = EngineDriver(engine)
        self._lock = threading.Lock()
        self._owner: int | None = None

    @property
    def model(self) -> Transformer:
        """The model; its weights must not change while requests run."""
        return self._model

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return self._open_engine().max_model_len

    @property
    def stats(self) -> EngineStats:
        """The engine's figures of this moment."""
        return self._open_driver().stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        response_format: ResponseFormat | None = None,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> list[RequestOutput]:
        """Continues prompts, all at once, and returns their answers in the order of the prompts.

        Args:
            prompts: texts or token ids; text is encoded as it stands, control spellings in it stay text.
            params: for all prompts, or one for each; None: the defaults.
            response_format: what the text must conform to, for all prompts, as in a chat request; nothing tells the
                model of it. An answer cut off by its length is unfinished.
            priority: of all of them: -100 to 100, higher goes first.
            cache_salt: only requests of the same salt share cached prefixes.
            timeout_s: an answer that is not done so many seconds after it was queued ends with an `error`; None:
                `request_timeout_s` of the engine.

        Raises:
            RequestError: a prompt, parameter or format is invalid; then nothing is generated.
        """
        asked = self._constrain(params, response_format)
        opened = self._reader.read_all(prompts, asked, priority=priority, cache_salt=cache_salt, timeout_s=timeout_s)
        with self._turn() as engine:
            for prompt in opened:
                check_prompt(engine, prompt)
            for _ in self._open_driver().run(opened):
                pass
        return [prompt.output() for prompt in opened]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        response_format: ResponseFormat | None = None,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> Iterator[str]:
        """Continues one prompt and yields its text as it becomes certain; never half a character.

        Leaving the loop early ends the request. Other calls wait until the stream is read or closed.

        Raises:
            RequestError: the prompt or a parameter is invalid, or n is not 1.
            Cancelled, CapacityError, EngineError: the answer ended with an error; see `error_kind`.
        """
        asked = self._constrain(params, response_format)
        [opened] = self._reader.read_all([prompt], asked, priority=priority, cache_salt=cache_salt, timeout_s=timeout_s)
        if len(opened.answers) != 1:
            raise RequestError(f"n is {len(opened.answers)}; a stream has 1 answer", param="n")
        with self._turn() as engine:
            check_prompt(engine, opened)
            yield from (text for text in self._open_driver().run([opened]) if text)
        failure = opened.answers[0].failure
        if failure is not None:
            raise failure

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Next-token logits after each prefix of `ids`, float32 [len, vocab], on the CPU.

        Computed on the packed path, as in training; a row's bits are those that the engine samples from.

        Raises:
            RequestError: no ids, too many, or one outside the vocabulary.
        """
        with self._turn() as engine:
            given = checked_ids(engine, ids)
            return self._open_driver().between_steps(lambda: packed_logits(self._model, given))

    def score(self, ids: Sequence[int]) -> Tensor:
        """log p(ids[t + 1] | ids[0 .. t]) for every t, float32 [len - 1], on the CPU.

        Equal bit for bit to the log-probabilities that the engine reports when it generates these tokens.

        Raises:
            RequestError: no ids, too many, or one outside the vocabulary.
        """
        with self._turn() as engine:
            given = checked_ids(engine, ids)
            return self._open_driver().between_steps(lambda: packed_logprobs(self._model, given))

    def pause(self, mode: PauseMode = "keep") -> None:
        """Stops between two tokens: "abort" ends what runs, "keep" lets it wait with its cache, "retract" without.

        Calls that generate then wait until another thread resumes.
        """
        self._open_driver().pause(mode)

    def resume(self) -> None:
        """Goes on after a pause."""
        self._open_driver().resume()

    def update_weights(self, source: WeightSource, version: int | None = None, checksum: str | None = None) -> int:
        """Takes other weights between two tokens; running requests keep their tokens and go on under them.

        Args:
            source: a state dict of the model, a file of `write_weights`, or a checkpoint folder.
            version: stamped on every later token; None: one more than any so far. Versions go forward, and back only
                to the very weights that had that version.
            checksum: `weights_checksum` of what the sender sent.

        Returns:
            The version in force.

        Raises:
            CheckpointError: they cannot be taken; then the old ones stay.
            RequestError: the version stood for other weights, or an argument is wrong.
        """
        return self._open_driver().update_weights(source, version, checksum)

    def flush(self) -> None:
        """Empties the prefix cache of all that no running request holds."""
        self._open_driver().flush()

    def close(self) -> None:
        """Frees the cache. Closing twice is fine; other calls, also those under way, then raise RequestError."""
        driver, self._driver = self._driver, None
        self._formats.close()
        if driver is not None:
            driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _constrain(
        self, params: SamplingParams | Sequence[SamplingParams] | None, response_format: ResponseFormat | None
    ) -> SamplingParams | Sequence[SamplingParams] | None:
        self._open_driver()
        waiting = self._formats.submit(response_format)
        ready = None if waiting is None else waiting.result()
        if ready is None:
            return params
        if isinstance(params, Sequence):
            return [constrained(each, ready) for each in params]
        return constrained(SamplingParams() if params is None else params, ready)

    def _open_driver(self) -> EngineDriver:
        if self._driver is None:
            raise RequestError("this LLM is closed; make a new one")
        return self._driver

    def _open_engine(self) -> Engine:
        return self._open_driver().engine

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
