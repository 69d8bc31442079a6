"""Who holds which page and window. Pure bookkeeping: ids only, no tensors, no clock. (Signatures; the body follows.)"""

from collections.abc import Callable, Hashable, Sequence

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.retention import Retention
from benthic.cache.row import Row
from benthic.cache.tables import PageTables
from benthic.cache.work import CacheStats, CacheWork, Match

Namespace = tuple[Hashable, ...]


class CacheManager:
    """Matches, opens, grows, commits, forks and closes request rows over one pool of pages and one of windows."""

    tables: PageTables

    def __init__(
        self,
        geometry: CacheGeometry,
        capacity: CacheCapacity,
        retention: Retention,
        *,
        keeps_extras: bool = False,
    ) -> None:
        raise NotImplementedError

    def match(self, tokens: Sequence[int], namespace: Namespace) -> Match:
        """How much of `tokens` is cached. Changes nothing; at least one token is left to compute."""
        raise NotImplementedError

    def open(
        self,
        tokens: Sequence[int],
        prompt_len: int,
        namespace: Namespace,
        *,
        use_cache: bool = True,
        need_extras: bool = False,
    ) -> Row | None:
        """Gives a sequence a row and everything of it that is cached.

        Args:
            tokens: all known tokens: the prompt, and the output so far where a retracted request resumes.
            prompt_len: tokens of the prompt itself: retention keeps the window at its end.
            namespace: weights and salt: (fingerprint, weight version, salt).
            use_cache: False neither reuses nor shares pages; forks of the row still share among themselves.
            need_extras: only pages that have extras are reused.

        Returns:
            None where no row is free or there is no room for the first page; nothing has changed then.
        """
        raise NotImplementedError

    def room(self, row: Row, want_len: int) -> int:
        """The longest length <= want_len that `grow` can reach now, evicting what nobody holds. Changes nothing."""
        raise NotImplementedError

    def grow(self, row: Row, new_len: int) -> None:
        """Gives the row pages and windows for positions before `new_len`; `room` must have said that it can."""
        raise NotImplementedError

    def commit(
        self,
        row: Row,
        new_len: int,
        tokens: Sequence[int],
        extras: Callable[[int], object] | None = None,
    ) -> None:
        """Declares positions before `new_len` computed and final, and shares the pages that this completes.

        Args:
            tokens: the sequence's tokens, at least `new_len`; read only where a page completes.
            extras: called with each completed page's number; what it returns is kept with the page, never changed.
        """
        raise NotImplementedError

    def fork(self, row: Row) -> Row | None:
        """A second row in the same committed state, at any length. None: no row is free, or no room for the copies.

        Device copies are queued; both rows may go on at once.
        """
        raise NotImplementedError

    def close(self, row: Row, *, finished: bool) -> None:
        """Ends a row at any moment, also with a pass in flight.

        Args:
            finished: the output is complete: its end is a checkpoint. False for abort and retraction: the last
                window stays as long as nobody needs the room.
        """
        raise NotImplementedError

    def row_extras(self, row: Row) -> list[object]:
        """Extras of the pages that were cached when the row was opened: positions before `stored_len`, in order."""
        raise NotImplementedError

    def flush(self, keep_namespaces: Sequence[Namespace] = ()) -> None:
        """Evicts everything that nobody holds, except in the given namespaces."""
        raise NotImplementedError

    def begin_pass(self, step: int) -> None:
        """A pass was launched: ids freed from now on are not handed out before it has ended. Steps ascend."""
        raise NotImplementedError

    def end_pass(self, step: int) -> None:
        """The oldest pass in flight has ended."""
        raise NotImplementedError

    def take_work(self) -> CacheWork:
        """The device work since the last call; it must be done before the next pass. Call it for every pass."""
        raise NotImplementedError

    def check(self) -> None:
        """Asserts every structural and conservation law, and recomputes all counters. Slow: for tests and idling."""
        raise NotImplementedError

    def stats(self) -> CacheStats:
        """Counts of now and since the start."""
        raise NotImplementedError
