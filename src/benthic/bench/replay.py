"""A workload through the cache's bookkeeping alone: no model, no device, token ids in and hits out.

Requests run as an engine would run them: several at once, prompts in chunks, replies token after token, retraction of
the youngest where pages run out. What a prompt finds is what `CacheManager` answers; nothing here guesses.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from benthic.bench.workload import Branches, Conversation, Session, final_histories
from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.manager import CacheManager
from benthic.cache.retention import retention
from benthic.cache.row import Row

_NAMESPACE = ("replay",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """How a workload runs."""

    max_running: int = 8
    """Requests at once."""
    chunk: int = 2048
    """Prompt tokens of a pass."""
    stride: int = 16
    """Reply tokens committed at once: the bookkeeping of a page is the same, the replay shorter."""
    pool: float = 1.5
    """Pages and kept windows there are, as a multiple of the live set."""
    retention_interval: int = 8192
    seed: int = 0
    """Of the order in which sessions take their turns."""
    check: bool = False
    """Asserts the cache's laws after every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptHit:
    """What one prompt found in the cache."""

    session_id: str
    turn: int
    prompt_len: int
    compressed_len: int
    """Tokens whose compressed entries were there."""
    usable_len: int
    """Tokens up to the last boundary of these that had a window."""
    start_len: int
    """Tokens that were not run through the model again; more than `usable_len` where replay was the cheaper way."""
    cut: str
    """Why no more was usable."""


@dataclass(slots=True)
class Replay:
    """A finished replay."""

    retention: str
    num_pages: int
    num_windows: int
    hits: list[PromptHit] = field(default_factory=list)
    num_retractions: int = 0

    @property
    def prompt_len(self) -> int:
        """Prompt tokens of all requests."""
        return sum(hit.prompt_len for hit in self.hits)

    @property
    def compressed_share(self) -> float:
        """Share of the prompt tokens whose compressed entries were cached."""
        return sum(hit.compressed_len for hit in self.hits) / max(self.prompt_len, 1)

    @property
    def usable_share(self) -> float:
        """Share of the prompt tokens up to a usable boundary."""
        return sum(hit.usable_len for hit in self.hits) / max(self.prompt_len, 1)

    @property
    def computed_share(self) -> float:
        """Share of the prompt tokens that ran through the model, replayed ones included."""
        return 1 - sum(hit.start_len for hit in self.hits) / max(self.prompt_len, 1)

    @property
    def usable_of_compressed(self) -> float:
        """Usable tokens among those with compressed entries."""
        return self.usable_share / self.compressed_share if self.compressed_share else 1.0

    @property
    def cuts(self) -> Counter[str]:
        """How often each reason ended a match."""
        return Counter(hit.cut for hit in self.hits)


def live_pages(sessions: Sequence[Session], page_size: int) -> int:
    """Distinct full pages of all histories at their end: what a cache needs to forget nothing that may come back."""
    pages: dict[tuple[int, tuple[int, ...]], int] = {}
    for history in final_histories(sessions):
        parent = 0
        for start in range(0, len(history) - page_size + 1, page_size):
            key = (parent, history[start : start + page_size])
            parent = pages.setdefault(key, len(pages) + 1)
    return len(pages)


def capacity(sessions: Sequence[Session], geometry: CacheGeometry, config: ReplayConfig) -> CacheCapacity:
    """A pool of `config.pool` times the live set.

    Live windows: the end of the last prompt and of the last output of every session. On top come the windows that
    running requests read and write themselves, which no policy can do without.
    """
    page = geometry.page_size
    longest = max(map(len, final_histories(sessions)))
    running = config.max_running * (geometry.window_pages + 2) + config.chunk // page if geometry.window else 0
    return CacheCapacity(
        num_pages=max(round(config.pool * live_pages(sessions, page)), longest // page + 2),
        num_windows=round(config.pool * 2 * len(sessions)) * geometry.window_pages + running,
        num_rows=config.max_running,
        max_len=longest + page,
    )


def replay(
    sessions: Sequence[Session], geometry: CacheGeometry, retention_name: str, config: ReplayConfig | None = None
) -> Replay:
    """Runs every turn of every session through a cache with that retention policy.

    Raises:
        ConfigError: the policy is unknown, or its interval does not fit the page size.
    """
    return _Replay(sessions, geometry, retention_name, config or ReplayConfig()).run()


@dataclass(slots=True, eq=False)
class _Running:
    conversation: Conversation
    row: Row
    tokens: list[int]
    prompt_len: int

    @property
    def is_done(self) -> bool:
        return self.row.committed_len == len(self.tokens)


class _Replay:
    def __init__(
        self, sessions: Sequence[Session], geometry: CacheGeometry, retention_name: str, config: ReplayConfig
    ) -> None:
        room = capacity(sessions, geometry, config)
        policy = retention(retention_name, page_size=geometry.page_size, interval=config.retention_interval)
        self._config = config
        self._manager = CacheManager(geometry, room, policy)
        self._branches = Branches(sessions)
        self._ready = self._branches.roots()
        self._retracted: deque[_Running] = deque()
        self._running: list[_Running] = []
        self._rng = Random(config.seed)
        self._result = Replay(retention_name, room.num_pages, room.num_windows)
        self._step = 0

    def run(self) -> Replay:
        while self._ready or self._retracted or self._running:
            self._admit()
            lengths = self._grow()
            self._manager.take_work()
            self._step += 1
            self._manager.begin_pass(self._step)
            for running, length in lengths:
                self._manager.commit(running.row, length, running.tokens)
            self._manager.end_pass(self._step)
            for running in [running for running in self._running if running.is_done]:
                self._finish(running)
        self._manager.check()
        return self._result

    def _admit(self) -> None:
        while len(self._running) < self._config.max_running and (self._retracted or self._ready):
            if not (self._resume() if self._retracted else self._begin()):
                assert self._running, "an empty cache has no room for one request"
                return

    def _resume(self) -> bool:
        waiting = self._retracted[0]
        row = self._manager.open(waiting.tokens, waiting.prompt_len, _NAMESPACE)
        if row is None:
            return False
        self._retracted.popleft()
        waiting.row = row
        self._running.append(waiting)
        return True

    def _begin(self) -> bool:
        place = self._rng.randrange(len(self._ready))
        conversation = self._ready[place]
        prompt = conversation.prompt()
        row = self._manager.open(prompt, len(prompt), _NAMESPACE)
        if row is None:
            return False
        del self._ready[place]
        # The last token of a reply is never run through the model: nothing comes after it.
        tokens = [*prompt, *conversation.turn.reply_ids[:-1]]
        self._running.append(_Running(conversation, row, tokens, len(prompt)))
        match = row.match
        self._result.hits.append(
            PromptHit(
                session_id=conversation.session.session_id,
                turn=conversation.num_done,
                prompt_len=len(prompt),
                compressed_len=match.compressed_len,
                usable_len=match.usable_len,
                start_len=row.start_len,
                cut=match.cut,
            )
        )
        return True

    def _grow(self) -> list[tuple[_Running, int]]:
        """Room for the next tokens of every request, the oldest first: (request, its length after the pass)."""
        lengths = []
        for running in list(self._running):
            length = self._grown(running) if running in self._running else 0
            if length:
                lengths.append((running, length))
        return lengths

    def _grown(self, running: _Running) -> int:
        """The length that a request can have after this pass; 0 when it had to give way."""
        row = running.row
        is_prefill = row.committed_len < running.prompt_len
        end = running.prompt_len if is_prefill else len(running.tokens)
        want = min(row.committed_len + (self._config.chunk if is_prefill else self._config.stride), end)
        while (length := self._manager.room(row, want)) <= row.committed_len:
            youngest = self._running[-1]
            self._retract(youngest)
            if youngest is running:
                return 0
        self._manager.grow(row, length)
        return length

    def _retract(self, running: _Running) -> None:
        """The youngest gives way, so the oldest always ends."""
        assert len(self._running) > 1, "one request does not fit an otherwise empty cache"
        self._running.remove(running)
        self._manager.close(running.row, finished=False)
        self._retracted.append(running)
        self._result.num_retractions += 1

    def _finish(self, running: _Running) -> None:
        self._running.remove(running)
        self._manager.close(running.row, finished=True)
        conversation = running.conversation
        conversation.complete()
        self._ready += self._branches.started_by(conversation)
        if conversation.has_turns:
            self._ready.append(conversation)
        if self._config.check:
            self._manager.check()


def replay_header(first: Replay) -> str:
    """What the lines of `replay_line` mean."""
    return (
        f"{len(first.hits)} requests, {first.prompt_len} prompt tokens; {first.num_pages} pages, "
        f"{first.num_windows} windows\n{'retention':<12}{'compressed':>11}{'usable':>9}{'of it':>8}{'computed':>10}"
        f"{'retracted':>11}  why no more was usable"
    )


def replay_line(one: Replay) -> str:
    """A policy's figures."""
    reasons = ", ".join(f"{reason}: {count}" for reason, count in one.cuts.most_common())
    return (
        f"{one.retention:<12}{one.compressed_share:>11.1%}{one.usable_share:>9.1%}{one.usable_of_compressed:>8.1%}"
        f"{one.computed_share:>10.1%}{one.num_retractions:>11}  {reasons}"
    )
