"""A command in the background: it lives on when its program or its host dies, and is found again by its place."""

import signal as signals
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, Protocol

from benthic.sandbox.host import Answer, Host, Request
from benthic.sandbox.records import Chunk, Result


class _Owner(Protocol):
    id: str
    host: Host

    async def call_logged(self, request: Request) -> Answer:
        """One call at the next place."""


class Process:
    """A spawned command. `seq` is its name."""

    def __init__(self, sandbox: _Owner, seq: int) -> None:
        self._sandbox = sandbox
        self.seq = seq

    async def wait(self) -> Result:
        """Until it has ended; the same result however often, and by whom, it is asked for. Timeouts do not raise."""
        result = await self._sandbox.host.wait(self._sandbox.id, self.seq)
        return replace(result, seq=self.seq)

    async def output(self) -> AsyncGenerator[Chunk, None]:
        """What is kept of its output so far, then the rest as it comes. While somebody reads, it waits for that."""
        async for chunk in self._sandbox.host.output(self._sandbox.id, self.seq):
            yield chunk

    async def feed(self, data: bytes | str, *, is_last: bool = False) -> None:
        """Input, once, however often the program is run again. It must have been spawned with `keeps_input`."""
        await self._logged("feed", data.encode() if isinstance(data, str) else data, is_last=is_last)

    async def close_input(self) -> None:
        """Ends its input."""
        await self._logged("feed", b"", is_last=True)

    async def signal(self, number: int) -> None:
        """To everything that it started."""
        await self._logged("signal", b"", signal=int(number))

    async def kill(self) -> None:
        """Ends everything that it started."""
        await self.signal(signals.SIGKILL)

    async def resize(self, rows: int, columns: int) -> None:
        """Its terminal."""
        await self._sandbox.host.resize(self._sandbox.id, self.seq, rows, columns)

    async def _logged(self, verb: Any, data: bytes, **facts: Any) -> None:
        await self._sandbox.call_logged(Request(verb=verb, arguments={"process": self.seq, **facts}, data=data))
