"""A client's heartbeat: the sandboxes that it holds are renewed while it lives, and paused soon after it does not.

What a sandbox may live is counted by its host, in running time: one that is paused for want of a holder loses none.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from benthic.errors import BenthicError
from benthic.sandbox.errors import SandboxDied

_log = logging.getLogger(__name__)
_BEATS_IN_A_LEASE = 3


class LeaseKeeper:
    """Renews leases from a task of its own, which starts with the first sandbox and ends with `aclose`.

    Args:
        renew: keeps one sandbox for so many seconds from now.
        lease_s: how long; None renews nothing.
    """

    def __init__(self, renew: Callable[[str, float], Awaitable[None]], lease_s: float | None) -> None:
        self._renew, self._lease_s = renew, lease_s
        self._held: set[str] = set()
        self._fresh = asyncio.Event()
        self._new: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def hold(self, sandbox_id: str) -> None:
        """From now on, and at once."""
        if self._lease_s is None or sandbox_id in self._held:
            return
        self._held.add(sandbox_id)
        self._new.add(sandbox_id)
        self._fresh.set()
        if self._task is None:
            self._task = asyncio.create_task(self._beat(self._lease_s), name="benthic-leases")

    def release(self, sandbox_id: str) -> None:
        """No longer."""
        self._held.discard(sandbox_id)
        self._new.discard(sandbox_id)

    async def aclose(self) -> None:
        """Stops renewing."""
        self._held.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self, lease_s: float) -> None:
        loop = asyncio.get_running_loop()
        next_beat = loop.time() + lease_s / _BEATS_IN_A_LEASE
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._fresh.wait(), max(0.0, next_beat - loop.time()))
            self._fresh.clear()
            due, self._new = self._new, set()
            if loop.time() >= next_beat:
                due, next_beat = set(self._held), loop.time() + lease_s / _BEATS_IN_A_LEASE
            await asyncio.gather(*(self._renew_one(sandbox_id, lease_s) for sandbox_id in sorted(due)))

    async def _renew_one(self, sandbox_id: str, lease_s: float) -> None:
        try:
            await self._renew(sandbox_id, lease_s)
        except SandboxDied:
            self.release(sandbox_id)
        except BenthicError as error:  # the next beat tries again; whoever calls the sandbox is told
            _log.warning("the lease of sandbox %s was not renewed: %s", sandbox_id, error)
