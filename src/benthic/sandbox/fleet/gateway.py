"""The fleet's door: places new sandboxes, knows where each lives and whose it is, and what the hosts say of them.

It holds no call and no output; those pass through to the host (`forwarding.py`), whose log makes them exactly-once.
What it does itself it first writes down, so that a gateway that is killed at any point leaves no sandbox that nobody
pays for and makes none twice: a key is tied to a host before that host is asked, and hosts tie it to a sandbox.
"""

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Sequence

from benthic.errors import BenthicError, CapacityError
from benthic.sandbox.errors import HostUnreachable, SandboxDied, UnknownSandbox
from benthic.sandbox.fleet.config import GatewayConfig
from benthic.sandbox.fleet.creations import Creation, Creations
from benthic.sandbox.fleet.hosts import HostEntry, Hosts
from benthic.sandbox.fleet.metrics import GatewayMetrics
from benthic.sandbox.fleet.placement import place
from benthic.sandbox.fleet.projects import Caller, Projects
from benthic.sandbox.fleet.sandbox_rows import SandboxRow, SandboxRows
from benthic.sandbox.fleet.state import open_state, transaction
from benthic.sandbox.fleet.status import HostStatus, SandboxStatus
from benthic.sandbox.host import SandboxInfo
from benthic.sandbox.records import Reason, SandboxSpec, SnapshotRef, State

_log = logging.getLogger(__name__)
_MISSING_BEATS = 3
"""Heartbeats in a row without a sandbox that is said to live there."""


class Gateway:
    """The state of the door.

    Args:
        config: where its file is, and how patient it is with hosts.
        rng: draws the candidates of a placement.
    """

    def __init__(self, config: GatewayConfig, rng: random.Random | None = None) -> None:
        self.config = config
        self.sql = open_state(config.state)
        self.projects = Projects(self.sql)
        self.creations = Creations(self.sql, self.projects)
        self.sandboxes = SandboxRows(self.sql)
        self.hosts = Hosts(self.sql, config.token)
        self.metrics = GatewayMetrics()
        self.rng = rng or random.Random()
        self._making: dict[tuple[str, str], asyncio.Lock] = {}
        self._orphans: dict[tuple[str, str], float] = {}
        self._missing: dict[str, int] = {}

    async def aclose(self) -> None:
        """Closes connections and the file."""
        await self.hosts.aclose()
        self.sql.close()

    async def create(
        self,
        caller: Caller,
        spec: SandboxSpec,
        *,
        key: str | None = None,
        snapshot: SnapshotRef | None = None,
        can_rebuild: bool = False,
    ) -> SandboxInfo:
        """Makes a sandbox on some host, or gives the one that was made for this key.

        Raises:
            QuotaExceeded: the project has all that it may have.
            CapacityError: no host has room now.
            NotSupported: no host can ever run it.
            HostUnreachable: the host that was asked does not answer; the same key asks it again.
        """
        key = key or uuid.uuid4().hex
        lock = self._making.setdefault((caller.project, key), asyncio.Lock())
        try:
            async with lock:
                creation = self.creations.reserve(
                    caller.project, key, spec, lambda: self._choose(caller.project, spec, snapshot, frozenset())
                )
                if creation.sandbox_id is not None:
                    return await self.info(self.sandboxes.get(creation.sandbox_id, None))
                return await self._make(creation, spec, snapshot, can_rebuild)
        finally:
            if not lock.locked():
                self._making.pop((caller.project, key), None)

    def add_forks(self, row: SandboxRow, keys: Sequence[str], forks: Sequence[SandboxInfo]) -> None:
        """What a sandbox's host made of it, for promises that were reserved."""
        with transaction(self.sql):
            for key, info in zip(keys, forks, strict=True):
                self.sandboxes.add(info, project=row.project, host=row.host)
                self.creations.finish(row.project, key, row.spec, row.host, info.id)
        self.hosts.promise(row.host, row.spec, len(forks))

    async def info(self, row: SandboxRow) -> SandboxInfo:
        """What is known of a sandbox: by its host, unless that is lost."""
        if row.state is State.DEAD or row.is_rebuilding or self.hosts.get(row.host).is_lost:
            return row.info()
        host = self.hosts.get(row.host)
        try:
            async with host.asked():
                found = await host.host.info(row.id)
        except SandboxDied as error:
            self.sandboxes.set_state(row.id, State.DEAD, error.reason, error.detail)
            return self.sandboxes.get(row.id, None).info()
        if found.state is not row.state:
            self.sandboxes.set_state(row.id, found.state, found.reason, found.detail)
        return found

    async def close(self, row: SandboxRow) -> None:
        """Ends a sandbox; one whose host does not answer now is closed there with its next heartbeat."""
        if row.state is State.DEAD:
            return
        host = self.hosts.get(row.host)
        self.sandboxes.set_state(row.id, State.DEAD, Reason.CLOSED)
        if not host.is_lost:
            try:
                async with host.asked():
                    await host.host.close(row.id)
            except (HostUnreachable, SandboxDied) as error:
                _log.warning("sandbox %s is closed with the next heartbeat of %s: %s", row.id, row.host, error)

    async def heartbeat(self, status: HostStatus) -> list[str]:
        """Takes a host's word for its own sandboxes; says which of them it must close.

        These are nobody's: closed or given up while the host was away, or made for a client that never came back.
        """
        if self.hosts.see(status):
            _log.warning("host %s is back", status.name)
        told = {sandbox.id: sandbox for sandbox in status.sandboxes}
        rows = {row.id: row for row in self.sandboxes.alive(host=status.name)}
        for row in rows.values():
            if not row.is_rebuilding:  # of such a one, its old host speaks no more
                await self._take_word(row, told.get(row.id))
        for known in [known for known in self._orphans if known[0] == status.name and known[1] not in told]:
            del self._orphans[known]
        return sorted(
            sandbox_id for sandbox_id in told.keys() - rows.keys() if self._is_orphan(status.name, sandbox_id)
        )

    def open_host(self, row: SandboxRow) -> HostEntry:
        """The host of a living sandbox.

        Raises:
            SandboxDied: it does not live.
            HostUnreachable: it is being rebuilt.
        """
        row.must_live()
        if row.is_rebuilding:
            raise HostUnreachable(f"sandbox {row.id} is being rebuilt on another host; ask again")
        return self.hosts.get(row.host)

    async def _make(
        self, creation: Creation, spec: SandboxSpec, snapshot: SnapshotRef | None, can_rebuild: bool
    ) -> SandboxInfo:
        refused: set[str] = set()
        host: str | None = creation.host
        while True:
            if host is None or self.hosts.get(host).is_lost:
                host = self._choose_again(creation, spec, snapshot, frozenset(refused))
            self.hosts.promise(host, spec)
            try:
                async with self.hosts.get(host).asked():
                    info = await self.hosts.get(host).host.create(spec, key=creation.host_key, snapshot=snapshot)
            except CapacityError as error:
                _log.info("host %s refused a sandbox: %s", host, error)
                self.metrics.refused.labels("host").inc()
                refused.add(host)
                host = None
                continue
            except HostUnreachable:
                raise
            except Exception:
                self.creations.drop(creation.project, creation.key)
                raise
            with transaction(self.sql):
                self.sandboxes.add(info, project=creation.project, host=host, can_rebuild=can_rebuild)
                self.creations.finish(creation.project, creation.key, spec, host, info.id)
            self.metrics.placed.labels(host).inc()
            return info

    def _choose(self, project: str, spec: SandboxSpec, snapshot: SnapshotRef | None, refused: frozenset[str]) -> str:
        candidates = self.hosts.candidates(spec)
        if snapshot is not None:
            home = self.sandboxes.home_of_snapshot(snapshot, project)
            candidates = [host for host in candidates if home in (None, host.name)]
        try:
            return place(candidates, spec, refused, self.rng)
        except BenthicError:
            self.metrics.refused.labels("placement").inc()
            raise

    def _choose_again(
        self, creation: Creation, spec: SandboxSpec, snapshot: SnapshotRef | None, refused: frozenset[str]
    ) -> str:
        """Another host than those that said no, or the promise is taken back."""
        try:
            host = self._choose(creation.project, spec, snapshot, refused)
        except BenthicError:
            self.creations.drop(creation.project, creation.key)
            raise
        self.creations.ask(creation, host)
        return host

    async def _take_word(self, row: SandboxRow, told: SandboxStatus | None) -> None:
        if told is not None:
            self._missing.pop(row.id, None)
            if told.state is not row.state:
                self.sandboxes.set_state(row.id, told.state, told.reason, told.detail)
            return
        # a heartbeat may have been written before the sandbox was, so one without it proves nothing
        self._missing[row.id] = self._missing.get(row.id, 0) + 1
        if self._missing[row.id] < _MISSING_BEATS:
            return
        del self._missing[row.id]
        with contextlib.suppress(HostUnreachable):
            try:
                await self.info(row)
            except UnknownSandbox:
                detail = f"host {row.host} no longer knows it"
                self.sandboxes.set_state(row.id, State.DEAD, Reason.CRASHED, detail)

    def _is_orphan(self, host: str, sandbox_id: str) -> bool:
        """Whether a sandbox that is in no row of the living may be closed now."""
        if self.sandboxes.is_left_behind(sandbox_id, host):
            return True
        since = self._orphans.setdefault((host, sandbox_id), time.monotonic())
        return time.monotonic() - since >= self.config.orphan_after_s
