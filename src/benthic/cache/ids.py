"""Ids of pages, windows and rows: who may have one, and what has to wait for passes in flight.

Page and window 0 are null: nobody owns them, they hold zeros, and tables name them where nothing is kept.
"""

from collections import deque
from collections.abc import Callable


class Fence:
    """What must wait until the device has finished with what it was given.

    A holder is a pass in flight, or a set of copies that is queued. An action runs at once where there is no holder,
    and else when every holder that was there at the time is gone. Actions run in the order in which they came.
    """

    def __init__(self) -> None:
        self._holders: dict[int, None] = {}  # ascending
        self._num_begun = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    @property
    def is_raised(self) -> bool:
        """Whether somebody may still read what is freed now."""
        return bool(self._holders)

    @property
    def num_waiting(self) -> int:
        """Actions that have not run yet."""
        return len(self._waiting)

    def begin(self) -> int:
        """A new holder; its number ends it."""
        self._num_begun += 1
        self._holders[self._num_begun] = None
        return self._num_begun

    def end(self, holder: int) -> None:
        """A holder is gone: runs what waited for it and for nobody else."""
        del self._holders[holder]
        oldest = next(iter(self._holders), self._num_begun + 1)
        while self._waiting and self._waiting[0][0] < oldest:
            self._waiting.popleft()[1]()

    def run_after(self, action: Callable[[], None]) -> None:
        """Runs `action` as soon as everybody who may read now has finished."""
        if not self._holders and not self._waiting:
            action()
        else:
            self._waiting.append((self._num_begun, action))


class IdPool:
    """Hands out ids first .. first + count - 1. Law: an id is free, taken or fenced, never two of these, never lost.

    Freed ids are handed out again first, so that a small load touches little memory.
    """

    def __init__(self, count: int, fence: Fence, *, first: int = 1) -> None:
        self.count = count
        self._fence = fence
        self._free = list(range(first + count - 1, first - 1, -1))
        self._taken: set[int] = set()
        self._fenced: set[int] = set()

    @property
    def num_free(self) -> int:
        """Ids that can be taken now."""
        return len(self._free)

    @property
    def num_fenced(self) -> int:
        """Ids that will be free when the passes in flight have ended."""
        return len(self._fenced)

    def take(self) -> int:
        """A free id; there must be one."""
        taken = self._free.pop()
        self._taken.add(taken)
        return taken

    def free_later(self, freed: int) -> None:
        """Frees an id that a pass in flight may still read."""
        assert freed in self._taken, f"id {freed} is freed but not taken"
        self._taken.remove(freed)
        self._fenced.add(freed)
        self._fence.run_after(lambda: self._unfence(freed))

    def free_now(self, freed: int) -> None:
        """Frees an id that nobody reads: everybody who held it let it go before the passes in flight began."""
        assert freed in self._taken, f"id {freed} is freed but not taken"
        self._taken.remove(freed)
        self._free.append(freed)

    def check(self, owned: list[int]) -> None:
        """Asserts conservation, given every id that the owners believe to own."""
        assert len(owned) == len(set(owned)), "an id has two owners"
        assert set(owned) == self._taken, f"owners and pool disagree: {set(owned) ^ self._taken}"
        free = set(self._free)
        assert len(free) == len(self._free), "an id is free twice"
        assert not (free & self._taken or free & self._fenced or self._taken & self._fenced), "an id is in two states"
        assert len(free) + len(self._taken) + len(self._fenced) == self.count, "an id is lost"

    def _unfence(self, freed: int) -> None:
        self._fenced.remove(freed)
        self._free.append(freed)
