"""How a handle is opened: whose sandbox it is, and whether its log is the one that was seen."""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from benthic.sandbox.errors import TrajectoryDiverged
from benthic.sandbox.host import Host
from benthic.sandbox.records import Checkpoint


class _Closing(Protocol):
    async def close(self) -> None:
        """Ends it."""


T = TypeVar("T", bound=_Closing)


class Opening(Generic[T]):
    """What `Sandbox.create` returns: to be awaited, or to be entered with `async with`."""

    def __init__(self, open_: Callable[[], Awaitable[T]]) -> None:
        self._open = open_
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.close()


@contextlib.asynccontextmanager
async def host_or_own(given: Host | None) -> AsyncGenerator[tuple[Host, Any], None]:
    """The host to use, and the same again if it is the handle's own; let go of when opening fails."""
    if given is not None:
        yield given, None
        return
    from benthic.sandbox.probe import local_host  # a host brings every driver along

    host = local_host()
    await host.open()
    try:
        yield host, host
    except BaseException:
        await host.leave()
        raise


async def require_same(host: Host, seen: Checkpoint) -> None:
    if seen.last_seq < 0:
        return
    now = await host.checkpoint(seen.sandbox_id, seen.last_seq)
    if seen.chain and now.chain != seen.chain:
        raise TrajectoryDiverged(
            f"the log of {seen.sandbox_id} up to call {seen.last_seq} is not the one that was seen there "
            f"({now.chain} instead of {seen.chain})"
        )
