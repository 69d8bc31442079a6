"""The engine: requests in tokens go in, `step` moves all of them on by one pass and returns what came out.

`step` is the only loop body of the system. An engine belongs to one thread. Every request that `add` accepts gets
exactly one FinalOutput from `step` or `fail_all`.
"""

from collections.abc import Sequence as Seq

from benthic.cache.block_manager import CacheManager
from benthic.cache.layout import plan_layout
from benthic.engine.config import EngineConfig
from benthic.engine.cpu import hold_threads
from benthic.engine.plan import SampledToken, ScheduledChunk
from benthic.engine.request import Event, FinishReason, Request
from benthic.engine.runner import ModelRunner, ServingModel
from benthic.engine.scheduler import Scheduler
from benthic.engine.sequence import Sequence
from benthic.engine.stats import EngineStats
from benthic.errors import CapacityError, PromptTooLong, RequestError


class Engine:
    """Continuous batching over one model.

    Args:
        model: in its final place and dtype. On CPU the engine sets torch's thread count to `config.num_threads`.
        config: budgets.

    Raises:
        ConfigError: the budgets do not hold one full context of the model.
    """

    def __init__(self, model: ServingModel, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self._model = model
        self._layout = plan_layout(
            model.config,
            max_num_seqs=self.config.max_num_seqs,
            max_batched_tokens=self.config.max_batched_tokens,
            max_model_len=self.config.max_model_len,
            cache_bytes=self.config.cache_bytes or 1 << 30,
            entry_bytes=model.dtype.itemsize,
        )
        self.max_model_len = self._layout.max_model_len
        self._num_added = self._num_finished = self._num_prompt_tokens = self._num_generated_tokens = 0
        self._num_retractions = 0
        self._live: dict[str, Sequence] = {}
        self._dismissed: list[tuple[str, FinishReason]] = []
        self._cache = CacheManager(self._layout)
        self._runner = ModelRunner(model, self._cache)
        self._scheduler = self._new_scheduler()
        self._is_on_cpu = model.device.type == "cpu"
        self._hold_threads()

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            self._cache,
            max_num_seqs=self.config.max_num_seqs,
            max_batched_tokens=self.config.max_batched_tokens,
            prefill_chunk=self.config.prefill_chunk,
            admission_headroom=self.config.admission_headroom,
        )

    def check(self, request: Request) -> None:
        """Whether `add` would take the request, were there room; touches nothing.

        Raises:
            PromptTooLong: the prompt leaves no room for a token.
            RequestError: it is empty, or holds ids outside the vocabulary.
        """
        prompt = request.prompt_ids
        if not prompt:
            raise RequestError("the prompt is empty; it must hold at least 1 token", param="prompt")
        if len(prompt) >= self.max_model_len:
            raise PromptTooLong(
                f"the prompt has {len(prompt)} tokens; at most {self.max_model_len - 1} leave room for an answer "
                f"in a context of {self.max_model_len}",
                param="prompt",
            )
        self.check_ids(prompt, "prompt")
        for name, ids in request.params.named_ids():
            self.check_ids(ids, name)

    def check_ids(self, ids: Seq[int], param: str) -> None:
        """Refuses ids that the model has no embedding for.

        Raises:
            RequestError: one is not an integer from 0 to the vocabulary's size - 1.
        """
        vocab_size = self._model.config.vocab_size
        wrong = next((i for i in ids if not isinstance(i, int) or not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise RequestError(
                f"{param} holds {wrong!r}; token ids are integers from 0 to {vocab_size - 1}", param=param
            )

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestError: see `check`; or its id is that of a live request.
            CapacityError: too many requests wait.
        """
        self.check(request)
        if request.request_id in self._live:
            raise RequestError(f"request_id {request.request_id!r} is in use; each live request needs its own")
        if self._scheduler.num_waiting >= self.config.max_num_waiting:
            raise CapacityError(f"{self._scheduler.num_waiting} requests wait, the most allowed; try again later")
        sequence = Sequence(request, self._num_added, self._limit_len(request), self._stop_ids(request))
        self._num_added += 1
        self._num_prompt_tokens += sequence.prompt_len
        self._live[request.request_id] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Ends a request before the next pass; `reason` is what its FinalOutput says. Unknown ids are ignored."""
        self._dismissed.append((request_id, reason))

    def has_work(self) -> bool:
        """Whether `step` would return or compute something."""
        return bool(self._live)

    def step(self) -> list[Event]:
        """Ends cancelled requests, then plans, runs and commits one pass."""
        events = self._dismiss()
        plan = self._scheduler.plan()
        if not plan.chunks:
            return events
        self._hold_threads()
        sampled = iter(self._runner.run(plan).sampled)
        for chunk in plan.chunks:
            self._scheduler.commit(chunk)
            if chunk.samples:
                events += self._extend(chunk, next(sampled))
        if self.config.debug_checks:
            self._cache.check()
        return events

    def fail_all(self, error: str) -> list[Event]:
        """Ends every live request with `error` and starts afresh, whatever state a failed or interrupted step left."""
        events: list[Event] = [sequence.finish("error", error) for sequence in self._live.values()]
        self._num_finished += len(events)
        self._num_retractions += self._scheduler.num_retractions
        self._live.clear()
        self._dismissed.clear()
        self._cache.reset()
        self._scheduler = self._new_scheduler()
        return events

    def stats(self) -> EngineStats:
        """Figures of this moment."""
        return EngineStats(
            num_waiting=self._scheduler.num_waiting,
            num_running=self._scheduler.num_running,
            num_finished=self._num_finished,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_retractions=self._num_retractions + self._scheduler.num_retractions,
            used_pages=self._cache.num_used,
            total_pages=self._cache.num_blocks,
        )

    def _hold_threads(self) -> None:
        """Somebody else's torch.set_num_threads must not change a row's bits."""
        if self._is_on_cpu:
            hold_threads(self.config.num_threads)

    def _extend(self, chunk: ScheduledChunk, token: SampledToken) -> list[Event]:
        sequence = chunk.sequence
        if token.error is not None:
            return [self._end(sequence, "error", token.error)]
        self._num_generated_tokens += 1
        events: list[Event] = [sequence.append(token.token_id, token.logprobs)]
        reason = sequence.natural_end()
        return events if reason is None else [*events, self._end(sequence, reason)]

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> Event:
        self._scheduler.remove(sequence)
        del self._live[sequence.request.request_id]
        self._num_finished += 1
        return sequence.finish(reason, error)

    def _dismiss(self) -> list[Event]:
        dismissed, self._dismissed = self._dismissed, []
        return [self._end(self._live[name], reason) for name, reason in dismissed if name in self._live]

    def _limit_len(self, request: Request) -> int:
        wanted = request.params.max_tokens
        room = self.max_model_len - len(request.prompt_ids)
        return len(request.prompt_ids) + (room if wanted is None else min(wanted, room))

    def _stop_ids(self, request: Request) -> frozenset[int]:
        eos = () if request.params.ignore_eos else (self._model.config.eos_token_id,)
        return frozenset((*eos, *request.params.stop_token_ids))
