"""Who may start: waiting sequences, the rows they get, and forks.

A sequence starts when a row is free and the pages of its known tokens, and of `headroom` more, fit beside what the
running ones will need as soon: so it is not retracted at once. It takes pages as it grows, not now. Alone in the cache
a sequence always fits, so the first of the queue starts at the latest when nobody runs.

Where the first does not fit, smaller ones behind it may start before it, but only as many as `max_num_seqs`: then
nobody starts until it does. What was refused is asked again when memory came back, at the latest after RETRY_STEPS.
"""

from collections.abc import Collection, Hashable

from benthic.cache.manager import CacheManager
from benthic.cache.row import Row
from benthic.engine.ranked_queue import RankedQueue
from benthic.engine.request import RowExtras
from benthic.engine.sequence import Phase, Sequence

LOOKAHEAD = 8
"""Waiting sequences that are considered in one plan."""
RETRY_STEPS = 16


class Admission:
    """The queue of waiting sequences over a cache.

    Args:
        max_num_seqs: running sequences at most.
        headroom: tokens that each may still grow by.
        use_cache: whether prefixes are looked up and shared at all.
    """

    def __init__(self, cache: CacheManager, *, max_num_seqs: int, headroom: int, use_cache: bool) -> None:
        self.namespace: tuple[Hashable, ...] = ()
        """What cached entries depend on besides tokens and salt: the weights."""
        self._cache = cache
        self._page_size = cache.geometry.page_size
        self._max_num_seqs = max_num_seqs
        self._headroom = headroom
        self._use_cache = use_cache
        self._waiting = RankedQueue()
        self._num_followers = 0
        self._patience = 0
        self._refused: Sequence | None = None

    def __len__(self) -> int:
        return len(self._waiting) + self._num_followers

    def add(self, sequence: Sequence, leader: Sequence | None = None) -> None:
        """Queues a sequence: behind its leader's prompt, if there is such a leader and it is not too late."""
        if leader is not None and _can_follow(sequence, leader):
            sequence.leader = leader
            leader.followers.append(sequence)
            self._num_followers += 1
        else:
            self._waiting.add(sequence)
            self.memory_came_back()

    def remove(self, sequence: Sequence) -> None:
        """Takes a waiting sequence out."""
        if sequence.leader is None:
            self._waiting.remove(sequence)
            return
        sequence.leader.followers.remove(sequence)
        sequence.leader = None
        self._num_followers -= 1

    def free_followers(self, leader: Sequence) -> None:
        """Those that waited for its prompt wait for themselves."""
        while leader.followers:
            follower = leader.followers[0]
            self.remove(follower)
            self.add(follower)

    def memory_came_back(self) -> None:
        """Who was refused may be asked again."""
        self._patience = 0
        self._refused = None

    def is_blocked(self, num_running: int) -> bool:
        """Whether the first that waits lacks a row or memory."""
        first = self.first()
        return first is not None and (num_running >= self._max_num_seqs or first is self._refused)

    def candidates(self, num_running: int) -> list[Sequence]:
        """Who might start in this plan, first one first."""
        if not self._waiting or num_running >= self._max_num_seqs:
            return []
        if self._patience > 0 and num_running:
            self._patience -= 1
            return []
        return self._waiting.first(LOOKAHEAD)

    def first(self) -> Sequence | None:
        """Who has waited longest, priority considered."""
        return next(iter(self._waiting), None)

    def start(self, sequence: Sequence, running: Collection[Sequence], now_s: float) -> bool:
        """Moves a candidate to a row of its own, if it fits; its followers too, if its prompt is all cached."""
        first = self.first()
        assert first is not None
        may_overtake = sequence is first or first.num_overtaken < self._max_num_seqs
        row = self._open(sequence, running) if may_overtake and len(running) < self._max_num_seqs else None
        if row is None:
            self._patience = RETRY_STEPS
            if sequence is first:
                self._refused = first
            return False
        if sequence is not first:
            first.num_overtaken += 1
        self._waiting.remove(sequence)
        sequence.admit(row, now_s)
        if sequence.extras is not None:
            for page, extras in enumerate(self._cache.row_extras(row)):
                if isinstance(extras, RowExtras):
                    sequence.extras.write(page * self._page_size, extras)
        return True

    def fork_followers(self, leader: Sequence, num_free: int, now_s: float) -> list[Sequence]:
        """Starts the followers of a leader that lacks only its prompt's last row; those without room wait alone.

        Args:
            num_free: rows that may be taken.
        """
        assert leader.row is not None and leader.computed_len == leader.prompt_len - 1, leader.computed_len
        started: list[Sequence] = []
        while leader.followers and len(started) < num_free:
            row = self._cache.fork(leader.row)
            if row is None:
                break
            follower = leader.followers[0]
            self.remove(follower)
            follower.admit(row, now_s, cut="fork")
            if follower.extras is not None and leader.extras is not None:
                follower.extras.write(0, leader.extras.read(0, leader.computed_len))
            started.append(follower)
        self.free_followers(leader)
        return started

    def shares_cache(self, sequence: Sequence) -> bool:
        """Whether it may take pages from the cache and leave its own there."""
        return self._use_cache and sequence.request.use_cache and not sequence.wants_whole_prompt

    def pages_to_come(self, sequence: Sequence) -> int:
        """Pages that a sequence, running or not, will take within its headroom."""
        return self._pages_to_come(sequence, sequence.row)

    def _pages_to_come(self, sequence: Sequence, row: Row | None) -> int:
        target_len = min(sequence.known_len + self._headroom, sequence.limit_len)
        held = 0 if row is None else max(row.allocated_len, row.stored_len) // self._page_size
        return max(0, -(-target_len // self._page_size) - held)

    def _open(self, sequence: Sequence, running: Collection[Sequence]) -> Row | None:
        """A row, if there is room for it; what it shares with others is not counted twice."""
        cache, request = self._cache, sequence.request
        use_cache = self.shares_cache(sequence)
        namespace = (*self.namespace, request.cache_salt)
        to_come, own = sum(map(self.pages_to_come, running)), self.pages_to_come(sequence)
        is_tight = bool(running) and to_come + own > cache.available_pages
        if is_tight:
            shared = cache.match(sequence.tokens, namespace).compressed_len if use_cache else 0
            if to_come + own - shared // self._page_size > cache.available_pages:
                return None
        row = cache.open(
            sequence.tokens,
            sequence.prompt_len,
            namespace,
            use_cache=use_cache,
            need_extras=sequence.needs_extras,
        )
        if row is not None and is_tight and to_come + self._pages_to_come(sequence, row) > cache.available_pages:
            cache.close(row, finished=False)
            return None
        return row


def _can_follow(sequence: Sequence, leader: Sequence) -> bool:
    """Whether the leader's prompt is the same in every respect and its last row is not on its way yet."""
    mine, its = sequence.request, leader.request
    is_in_time = leader.phase is not Phase.DONE and leader.scheduled_len < leader.prompt_len == leader.known_len
    is_alike = (mine.priority, mine.cache_salt, mine.use_cache) == (its.priority, its.cache_salt, its.use_cache)
    is_plain = leader.leader is None and leader.prompt_len > 1 and not sequence.wants_whole_prompt
    return is_in_time and is_alike and is_plain and mine.prompt_ids == its.prompt_ids
