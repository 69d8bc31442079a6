"""Watches the hosts: one that falls silent is lost, and each of its sandboxes is either dead or made anew elsewhere."""

import asyncio
import logging
import time

from benthic.errors import BenthicError
from benthic.sandbox.fleet.gateway import Gateway
from benthic.sandbox.fleet.rebuild import rebuild
from benthic.sandbox.fleet.sandbox_rows import SandboxRow
from benthic.sandbox.records import Reason, State

_log = logging.getLogger(__name__)
_LOOKS_IN_A_LOSS = 6
_REBUILDS_AT_ONCE = 8
_ABANDONED_S = 3600.0


class Watcher:
    """Looks at the hosts again and again."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._rebuilds: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_REBUILDS_AT_ONCE)

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                try:
                    self.look()
                except BenthicError as error:  # the state file may be full; the next look may succeed
                    _log.error("the hosts could not be looked at: %s", error)
                await asyncio.sleep(self._gateway.config.lost_after_s / _LOOKS_IN_A_LOSS)
        finally:
            for task in self._rebuilds.values():
                task.cancel()
            await asyncio.gather(*self._rebuilds.values(), return_exceptions=True)

    def look(self) -> None:
        """Once: gives up who is silent, and takes up rebuilds that an earlier gateway left behind."""
        gateway = self._gateway
        for name in gateway.hosts.silent(gateway.config.lost_after_s):
            _log.error("host %s is lost: no heartbeat for %g s", name, gateway.config.lost_after_s)
            gateway.hosts.lose(name)
            gateway.metrics.hosts_lost.inc()
        lost = {entry.status.name for entry in gateway.hosts.all() if entry.is_lost}
        for row in gateway.sandboxes.alive():
            if row.host in lost or row.is_rebuilding:
                self._give_up(row)
        gateway.creations.drop_abandoned(time.time() - _ABANDONED_S)
        gateway.metrics.show(_count([entry.state for entry in gateway.hosts.all()]), gateway.sandboxes.num_by_state())

    def _give_up(self, row: SandboxRow) -> None:
        if not row.can_rebuild:
            self._gateway.metrics.sandboxes_lost.inc()
            self._gateway.sandboxes.set_state(
                row.id, State.DEAD, Reason.HOST_LOST, f"host {row.host} sends no heartbeats"
            )
        elif row.id not in self._rebuilds:
            self._gateway.sandboxes.begin_rebuild(row.id, f"host {row.host} is lost; it is being rebuilt")
            self._rebuilds[row.id] = asyncio.create_task(self._rebuild(row))

    async def _rebuild(self, row: SandboxRow) -> None:
        gateway = self._gateway
        try:
            async with self._turns:
                outcome = await rebuild(gateway, row)
            gateway.metrics.rebuilt.labels(outcome.word).inc()
        except BenthicError as error:  # the next look tries again
            _log.warning("sandbox %s is not rebuilt yet: %s", row.id, error)
        finally:
            del self._rebuilds[row.id]


def _count(words: list[str]) -> dict[str, int]:
    return {word: words.count(word) for word in set(words)}
