"""A host's memory of requests: one that is sent again joins the first or gets its answer, and never runs twice.

Calls with a place in a trajectory need none of this, since the log answers them; they are only joined while they run.
The memory is this process's: a request that may have arrived at an earlier one is refused, not guessed at.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from benthic.errors import CapacityError
from benthic.sandbox.errors import HostUnreachable, OutcomeUnknown

_KEPT_S = 600.0
_KEPT_LEN = 20_000


class Once:
    """Requests by id. `incarnation` names this memory."""

    def __init__(self) -> None:
        self.incarnation = secrets.token_hex(8)
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._ended: dict[str, tuple[float, asyncio.Task[Any]]] = {}

    def start(
        self,
        request_id: str,
        make: Callable[[], Coroutine[Any, Any, Any]],
        *,
        again_for: str | None = None,
        is_remembered: bool = True,
    ) -> asyncio.Task[Any]:
        """The task of that request, started if it is new.

        Args:
            request_id: unique, of the client's making.
            make: does it.
            again_for: the incarnation that may have seen it before; None if nobody has.
            is_remembered: whether its answer is kept for those who ask again.

        Raises:
            OutcomeUnknown: another incarnation may have done it.
        """
        known = self._running.get(request_id) or self._ended.get(request_id, (0.0, None))[1]
        if known is not None:
            return known
        if again_for is not None and again_for != self.incarnation:
            raise OutcomeUnknown(
                "the host's agent was started anew while this request was under way: it may have been done or not; "
                "look at the sandbox before you decide"
            )
        task = asyncio.create_task(make())
        self._running[request_id] = task
        task.add_done_callback(lambda _: self._end(request_id, task, is_remembered))
        return task

    async def aclose(self) -> None:
        """Cancels what runs."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, request_id: str, task: asyncio.Task[Any], is_remembered: bool) -> None:
        del self._running[request_id]
        if task.cancelled():
            return
        problem = task.exception()  # also marks it as seen: whoever sent it may have gone
        if is_remembered and not isinstance(problem, CapacityError | HostUnreachable):
            self._ended[request_id] = (time.monotonic(), task)
        horizon = time.monotonic() - _KEPT_S
        while self._ended and (len(self._ended) > _KEPT_LEN or next(iter(self._ended.values()))[0] < horizon):
            del self._ended[next(iter(self._ended))]
