"""Load on a server: sessions arrive, their turns follow each other, every request becomes a record.

Sessions arrive as a Poisson process of a given rate, or all at once; at most so many requests are open at a time. A
request's clock starts when it is due: for a session's first turn at its arrival, afterwards when the reply before it
is complete.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from benthic.bench.client import Client, Reply
from benthic.bench.records import RequestRecord
from benthic.bench.workload import Branches, Conversation, Session
from benthic.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """How requests arrive.

    Raises:
        ConfigError: a number is out of range.
    """

    rate: float = math.inf
    """Sessions that arrive in a second, at random; infinity: all at the start."""
    max_concurrency: int | None = None
    """Requests open at once; None: as many as are due."""
    seed: int = 0
    """Of the arrival times."""

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ConfigError(f"rate is {self.rate}; it must be a number of sessions a second > 0, or inf")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency is {self.max_concurrency}; it must be at least 1")


class Run(NamedTuple):
    """What a load run left behind."""

    records: list[RequestRecord]
    duration_s: float


def arrival_times(count: int, config: LoadConfig) -> list[float]:
    """Seconds from the start at which sessions arrive, rising."""
    rng, now = Random(config.seed), 0.0
    times = []
    for _ in range(count):
        times.append(now)
        now += 0.0 if math.isinf(config.rate) else rng.expovariate(config.rate)
    return times


async def run_load(
    sessions: Sequence[Session],
    client: Client,
    config: LoadConfig,
    done: Callable[[RequestRecord], None] = lambda record: None,
) -> Run:
    """Sends every turn of every session once.

    A session ends with its first failed turn; its other turns are recorded as failed, none is left out.
    """
    load = _Load(sessions, client, config, done)
    return await load.run()


class _Load:
    def __init__(
        self, sessions: Sequence[Session], client: Client, config: LoadConfig, done: Callable[[RequestRecord], None]
    ) -> None:
        self._branches = Branches(sessions)
        self._client = client
        self._config = config
        self._done = done
        self._room = asyncio.Semaphore(config.max_concurrency or 1 << 30)
        self._records: list[RequestRecord] = []
        self._start_s = 0.0

    async def run(self) -> Run:
        roots = self._branches.roots()
        self._start_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for conversation, at in zip(roots, arrival_times(len(roots), self._config), strict=True):
                group.create_task(self._converse(conversation, at, group))
        return Run(self._records, time.perf_counter() - self._start_s)

    async def _converse(self, conversation: Conversation, due_s: float, group: asyncio.TaskGroup) -> None:
        await asyncio.sleep(due_s - self._now())
        while conversation.has_turns:
            record, reply = await self._ask(conversation, due_s)
            self._keep(record)
            if not record.is_ok:
                self._give_up(conversation)
                return
            conversation.complete(reply.token_ids)
            due_s = self._now()
            for branch in self._branches.started_by(conversation):
                group.create_task(self._converse(branch, due_s, group))

    async def _ask(self, conversation: Conversation, due_s: float) -> tuple[RequestRecord, Reply]:
        prompt = conversation.prompt()
        async with self._room:
            sent_s = self._now()
            reply = await self._client.complete(prompt, len(conversation.turn.reply_ids))
        since = self._start_s + due_s
        times = reply.times_s
        record = RequestRecord(
            session_id=conversation.session.session_id,
            turn=conversation.num_done,
            due_s=due_s,
            sent_s=sent_s - due_s,
            ttft_s=times[0] - since if times else None,
            e2e_s=times[-1] - since if times else None,
            itl_s=tuple(b - a for a, b in zip(times, times[1:], strict=False)),
            prompt_len=len(prompt),
            output_len=reply.output_len,
            cached_len=reply.cached_len,
            accepted_len=reply.accepted_len,
            finish_reason=reply.finish_reason,
            error=reply.error or (None if times else "the answer was empty"),
        )
        return record, reply

    def _give_up(self, conversation: Conversation) -> None:
        """Records what a failed turn prevents: the session's later turns, and its branches with theirs."""
        failed = conversation.num_done
        while conversation.has_turns:
            if conversation.num_done > failed:
                self._keep(self._prevented(conversation))
            conversation.complete()
            for branch in self._branches.started_by(conversation):
                self._keep(self._prevented(branch))
                self._give_up(branch)

    def _prevented(self, conversation: Conversation) -> RequestRecord:
        return RequestRecord(
            session_id=conversation.session.session_id,
            turn=conversation.num_done,
            due_s=self._now(),
            prompt_len=len(conversation.prompt()),
            error="an earlier turn failed",
        )

    def _keep(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._done(record)

    def _now(self) -> float:
        return time.perf_counter() - self._start_s
