"""Work that may go on beside other work: branches of a layer that meet again.

A branch reads what was there when it started and writes what nobody else touches before it is joined, so the order in
which branches run is a matter of speed alone.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Beside(Protocol):
    """Starts a branch."""

    def __call__(self, work: Callable[[], T], /) -> Callable[[], T]:
        """Does `work` now or beside what follows; what is returned joins the branch and gives the result, once."""
        ...


def in_line(work: Callable[[], T], /) -> Callable[[], T]:
    """Does the work at once."""
    result = work()
    return lambda: result
