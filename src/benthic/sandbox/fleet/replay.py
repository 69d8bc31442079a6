"""A program that is run again gets what its log has in pages, instead of one request a call.

A call that a host answered from its log is taken as the sign of such a program: the page behind it is fetched, and the
calls that follow are answered from that while they ask for the same. A logged answer never changes, so a page cannot
be stale; whatever it does not hold, or differs from it, goes to the host, which answers, joins, runs or refuses it.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from benthic.errors import BenthicError
from benthic.sandbox.host import Answer, Logged, Request
from benthic.sandbox.trajectory.ledger import hash_of

_KEPT_PAGES = 64
"""A page is 1 MiB at most."""

Fetch = Callable[[str, int], Awaitable[list[Logged]]]


class ReplayPages:
    """The last page of each sandbox that is being replayed.

    Args:
        fetch: the page of a sandbox from a place on.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._pages: OrderedDict[str, Mapping[int, Logged]] = OrderedDict()
        self._locks: dict[str, asyncio.Lock] = {}

    async def answer(self, sandbox_id: str, seq: int, request: Request) -> Answer | None:
        """What is known to be the answer; None asks the host."""
        known = self._known(sandbox_id, seq)
        if known is None or await hash_of(request) != known.request_hash:
            return None
        await asyncio.sleep(0)  # a long replay must not keep leases, and others, waiting
        return known.answer

    def exit(self, sandbox_id: str, seq: int) -> Answer | None:
        """How a spawned command is known to have ended."""
        known = self._known(sandbox_id, seq)
        return None if known is None else known.exit

    async def told(self, sandbox_id: str, seq: int, answer: Answer) -> None:
        """The host has answered this; fetches the page behind it if it was from the log."""
        if not answer.is_replayed:
            self.drop(sandbox_id)
            return
        lock = self._locks.setdefault(sandbox_id, asyncio.Lock())
        try:
            async with lock:
                if self._known(sandbox_id, seq + 1) is None:
                    with contextlib.suppress(BenthicError):  # the host itself will say what is wrong
                        self._keep(sandbox_id, await self._fetch(sandbox_id, seq + 1))
        finally:
            if not lock.locked():
                self._locks.pop(sandbox_id, None)

    def drop(self, sandbox_id: str) -> None:
        """Its replay is over."""
        self._pages.pop(sandbox_id, None)

    def _known(self, sandbox_id: str, seq: int) -> Logged | None:
        return self._pages.get(sandbox_id, {}).get(seq)

    def _keep(self, sandbox_id: str, page: list[Logged]) -> None:
        self._pages[sandbox_id] = {item.answer.seq: item for item in page}
        self._pages.move_to_end(sandbox_id)
        if len(self._pages) > _KEPT_PAGES:
            self._pages.popitem(last=False)
