"""How sandboxes of this machine come to be, are taken over, made again and end; `LocalHost` calls what lives.

Every sandbox is in one of three places: `live`, owned by this process; held by another living process, which its
log's lock tells; or dead, with a log that still answers.
"""

import asyncio
import contextlib
import secrets
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from benthic.errors import BenthicError, SandboxError
from benthic.sandbox.errors import GuestLost, SandboxDied, TrajectoryDiverged, TrajectoryHeld, UnknownSandbox
from benthic.sandbox.folders import Folders, SandboxRecord, kernel_boot_id
from benthic.sandbox.guest import Guest
from benthic.sandbox.host import Rebuilt
from benthic.sandbox.images import Store
from benthic.sandbox.live import LiveSandbox
from benthic.sandbox.rebuilding import Origin, Rerun, copy_calls, doubtful, origin
from benthic.sandbox.records import Checkpoint, Reason, SandboxSpec, SnapshotRef, State
from benthic.sandbox.starting import Started, Starter, attached, configure
from benthic.sandbox.sweeping import sweep
from benthic.sandbox.trajectory import BlobStore, Head, Trajectory, TrajectoryLog
from benthic.sandbox.wire import encode

T = TypeVar("T")

WATCH_S = 0.5
DEATH_EVERY = 4
"""A driver is asked for deaths every so many rounds of the watch."""


class Lifecycle:
    """See the module's docstring."""

    def __init__(self, folders: Folders, starter: Starter, *, max_paused_s: float) -> None:
        self.folders = folders
        self.starter = starter
        self.live: dict[str, LiveSandbox] = {}
        self.blobs = BlobStore(folders.blobs)
        self._store = Store(folders.store)
        self._max_paused_s = max_paused_s
        self._executor = _sync_threads()
        self._keyed: dict[str, asyncio.Task[str]] = {}
        self._taking: dict[str, asyncio.Task[LiveSandbox | None]] = {}
        self._burials: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._boot_id = kernel_boot_id()
        self._has_left = False

    async def open(self) -> None:
        """Makes the folders and begins to watch."""
        if self._has_left:
            self._executor, self._has_left = _sync_threads(), False
        await asyncio.to_thread(self.folders.create)
        self.starter.open()
        if self._watch is None:
            self._watch = asyncio.create_task(self._watch_all(), name="sandbox watch")

    async def leave(self) -> None:
        """Lets go of every sandbox without ending it."""
        self._has_left = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        await asyncio.gather(*self._keyed.values(), *self._burials.values(), return_exceptions=True)
        await self.starter.leave()
        await asyncio.gather(*(sandbox.leave() for sandbox in self.live.values()))
        for sandbox in self.live.values():
            self.folders.save(replace(sandbox.record, lived_s=sandbox.lifetime.lived(time.time())))
        self.live.clear()
        self._executor.shutdown(wait=False)

    async def create(self, spec: SandboxSpec, key: str | None, snapshot: SnapshotRef | None) -> str:
        """A new sandbox's id, or the one that was made for the key before."""
        if key is None:
            return await self._create(spec, None, snapshot, None)
        task = self._keyed.get(key)
        if task is None:
            task = self._keyed[key] = asyncio.create_task(self._create_keyed(spec, key, snapshot))
            task.add_done_callback(lambda _: self._keyed.pop(key, None))
        return await asyncio.shield(task)  # a caller that gives up finds it by its key

    async def _create_keyed(
        self,
        spec: SandboxSpec,
        key: str,
        snapshot: SnapshotRef | None,
        parent: Checkpoint | None = None,
        fill: Callable[[TrajectoryLog], Coroutine[Any, Any, None]] | None = None,
    ) -> str:
        while True:
            owner = self.folders.key_owner(key)
            record = self.folders.load(owner) if owner else None
            if record is None or record.state is not State.STARTING:
                break
            with contextlib.suppress(TrajectoryHeld):  # somebody still starts it; else it is found dead now
                await self.take(record.id)
            await asyncio.sleep(0.05)
        if record is not None and (record.state is not State.DEAD or record.start_s):
            return record.id
        return await self._create(spec, key, snapshot, parent, instead_of=owner, fill=fill)

    async def _create(
        self,
        spec: SandboxSpec,
        key: str | None,
        snapshot: SnapshotRef | None,
        parent: Checkpoint | None,
        *,
        instead_of: str | None = None,
        fill: Callable[[TrajectoryLog], Coroutine[Any, Any, None]] | None = None,
    ) -> str:
        driver = await self.starter.choose(spec)
        with self.folders.making():
            record, log = await self._written_down(spec, driver.name, key, snapshot, parent)
            try:
                await asyncio.to_thread(self.folders.save, record)
                owner = self.folders.claim_key(key, record.id, instead_of=instead_of) if key is not None else None
            except BaseException as error:
                await self._never_came_up(record, log, error)
                raise
            if owner not in (None, record.id):
                await self._forget(record, log)
        if key is not None and owner != record.id:  # another process was quicker
            return await self._create_keyed(spec, key, snapshot, parent, fill)
        try:
            if fill is not None:
                await fill(log)
            started = await self.starter.start(driver, spec, self.folders.home(record.id), snapshot)
        except BaseException as error:
            await self._never_came_up(record, log, error)
            raise
        await self._admit(record, started, log)
        return record.id

    async def _written_down(
        self, spec: SandboxSpec, driver: str, key: str | None, snapshot: SnapshotRef | None, parent: Checkpoint | None
    ) -> tuple[SandboxRecord, TrajectoryLog]:
        """A new id with its log; the record is not saved yet."""
        sandbox_id = await asyncio.to_thread(self.folders.new_id)
        now_s = time.time()
        record = SandboxRecord(
            id=sandbox_id,
            spec=spec,
            driver=driver,
            key=key,
            created_s=now_s,
            boot_id=self._boot_id,
            snapshot=snapshot,
        )
        head = Head(
            sandbox_id=sandbox_id,
            spec=encode(spec),
            created_s=now_s,
            parent=parent,
            snapshot=encode(snapshot) if snapshot else None,
        )
        log = await TrajectoryLog.create(self.folders.log(sandbox_id), self.blobs, head, executor=self._executor)
        return record, log

    async def _admit(self, record: SandboxRecord, started: Started, log: TrajectoryLog) -> LiveSandbox:
        record = replace(record, state=State.RUNNING, start_s=started.seconds, reason=None, detail="")
        await asyncio.to_thread(self.folders.save, record)
        sandbox = LiveSandbox(self, record, started.machine, started.guest, log)
        self.live[record.id] = sandbox
        return sandbox

    async def _never_came_up(self, record: SandboxRecord, log: TrajectoryLog, error: BaseException) -> None:
        shutil.rmtree(self.folders.home(record.id), ignore_errors=True)
        self.folders.save(replace(record, state=State.DEAD, reason=Reason.CRASHED, detail=f"did not start: {error}"))
        if record.key is not None:
            self.folders.release_key(record.key, record.id)
        await log.close()

    async def _forget(self, record: SandboxRecord, log: TrajectoryLog) -> None:
        await log.close()
        await asyncio.to_thread(shutil.rmtree, self.folders.log(record.id).parent)

    async def find(self, sandbox_id: str) -> LiveSandbox | None:
        """A sandbox that lives here, taken over if it belongs to nobody; None if it is dead.

        Raises:
            UnknownSandbox: no such sandbox was ever made.
            TrajectoryHeld: it belongs to another process.
        """
        sandbox = self.live.get(sandbox_id)
        if sandbox is not None and sandbox.record.state is not State.DEAD:
            return sandbox
        return await self.take(sandbox_id)

    async def take(self, sandbox_id: str) -> LiveSandbox | None:
        """Takes over what another process left, or finds it dead."""
        if self._has_left:
            raise TrajectoryHeld(f"this host has let go of sandbox {sandbox_id}; call it through another one")
        task = self._taking.get(sandbox_id)
        if task is None:
            task = self._taking[sandbox_id] = asyncio.create_task(self._take(self.record(sandbox_id)))
            task.add_done_callback(lambda _: self._taking.pop(sandbox_id, None))
        return await asyncio.shield(task)

    def record(self, sandbox_id: str) -> SandboxRecord:
        """What is known of a sandbox.

        Raises:
            UnknownSandbox: no such sandbox was ever made.
        """
        sandbox = self.live.get(sandbox_id)
        record = sandbox.record if sandbox else self.folders.load(sandbox_id)
        if record is None:
            raise UnknownSandbox(f"there is no sandbox {sandbox_id} in {self.folders.root}; list those that there are")
        return record

    async def _take(self, record: SandboxRecord) -> LiveSandbox | None:
        if record.id in self._burials:
            await asyncio.shield(self._burials[record.id])
            record = self.record(record.id)
        if record.state is State.DEAD or record.id in self.live:
            return self.live.get(record.id)
        log = await TrajectoryLog.open(self.folders.log(record.id), self.blobs, executor=self._executor)
        record = self.folders.load(record.id) or record  # its last owner may have changed it meanwhile
        home = self.folders.home(record.id)
        driver = self.starter.named(record.spec.kind, record.driver)
        if driver is None:
            await log.close()
            raise SandboxError(f"sandbox {record.id} was made by {record.driver}, which this host does not have")
        machine = await driver.adopt(record.spec, home) if record.state is not State.DEAD else None
        reason, detail = Reason.CRASHED, "its machine was gone when its host came back"
        if record.boot_id != self._boot_id:
            reason, detail = Reason.HOST_LOST, "the machine under it was started anew"
        if machine is not None and record.state is State.STARTING:
            await machine.destroy()
            machine, detail = None, "its host died while it was being started"
        if machine is not None:
            try:
                is_paused = record.state is State.PAUSED
                guest = await self._attached(machine, record.spec, is_paused)
                sandbox = LiveSandbox(self, record, machine, guest, log)
                self.live[record.id] = sandbox
                sandbox.settle()
                return sandbox
            except GuestLost as error:
                reason, detail = await machine.death() or (Reason.CRASHED, str(error))
                await machine.destroy()
        try:
            await driver.remove(home)
        except SandboxError:
            await log.close()
            raise
        await asyncio.to_thread(shutil.rmtree, home, True)
        if record.state is not State.DEAD:
            self.folders.save(replace(record, state=State.DEAD, reason=reason, detail=detail))
            await log.note("died", reason=reason.value, detail=detail)
        await log.close()
        return None

    async def _attached(self, machine: Any, spec: SandboxSpec, is_paused: bool) -> Guest:
        """A frozen machine does not greet; it is let go on for a moment."""
        if is_paused:
            await machine.thaw()
        guest = await attached(machine)
        try:
            if not guest.hello.is_configured:
                await configure(guest, machine, spec)
            await machine.open_network(guest, spec.network)
            if is_paused:
                await machine.freeze()
        except BaseException:
            await guest.close()
            raise
        return guest

    async def adopt_all(self) -> list[str]:
        """Takes over every sandbox that nobody owns; returns the ids of those that live."""
        alive = []
        for sandbox_id in await asyncio.to_thread(lambda: list(self.folders.ids())):
            record = self.folders.load(sandbox_id)
            if record is None or record.state is State.DEAD:
                continue
            if self.folders.is_shared and not self.folders.home(sandbox_id).exists():
                continue  # another host's, whose agent may only be away for a moment
            try:
                if await self.find(sandbox_id) is not None:
                    alive.append(sandbox_id)
            except SandboxError:  # another has it, or it cannot be taken now: whoever calls it hears why
                continue
        return alive

    async def reconcile(self) -> list[str]:
        """Removes every resource that belongs to no sandbox that lives; says what went."""
        return await sweep(self.folders, self.starter.drivers)

    def changed(self, record: SandboxRecord) -> None:
        """Keeps a sandbox's new state."""
        self.folders.save(record)

    def found_dead(self, sandbox: LiveSandbox, death: SandboxDied) -> None:
        """Buries it in the background."""
        if not self._has_left:
            self._begin_burial(sandbox, death.reason, death.detail)

    async def bury(self, sandbox: LiveSandbox, reason: Reason, detail: str = "") -> None:
        """Ends it, removes its home, and keeps its log."""
        await asyncio.shield(self._begin_burial(sandbox, reason, detail))

    def _begin_burial(self, sandbox: LiveSandbox, reason: Reason, detail: str) -> "asyncio.Task[None]":
        sandbox_id = sandbox.record.id
        task = self._burials.get(sandbox_id)
        if task is None:
            task = self._burials[sandbox_id] = asyncio.create_task(self._bury(sandbox, reason, detail))
            task.add_done_callback(lambda _: self._burials.pop(sandbox_id, None))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _bury(self, sandbox: LiveSandbox, reason: Reason, detail: str) -> None:
        try:
            await sandbox.bury(reason, detail)
        finally:
            self.live.pop(sandbox.record.id, None)
            await asyncio.to_thread(shutil.rmtree, self.folders.home(sandbox.record.id), True)

    async def make_forks(self, sandbox: LiveSandbox, seq: int, count: int) -> list[str]:
        """Sandboxes that start from the present state of another; the same ones for the same place."""
        record = sandbox.record
        keys = [f"fork of {record.id} at {seq}: {index}" for index in range(count)]
        if not all(self.folders.key_owner(key) for key in keys):
            name = f"{record.id}-fork-{seq if seq >= 0 else secrets.token_hex(4)}"
            ref = await sandbox.snapshot(name, is_asked=False)
            parent = sandbox.log.checkpoint(ref.seq)
            made = [self._create_keyed(record.spec, key, ref, parent) for key in keys]
            if seq < 0:
                made = [self._create(record.spec, None, ref, parent) for _ in keys]
            return await all_of(made)
        return [owner for key in keys if (owner := self.folders.key_owner(key))]

    async def branch(self, log: Trajectory, spec: SandboxSpec, seq: int, key: str | None) -> str:
        """A sandbox with the calls before a place, in the state that they made."""
        start = origin(log, seq, self._is_here)

        async def fill(child: TrajectoryLog) -> None:
            await copy_calls(log, child, seq)

        key = key or f"branch {secrets.token_hex(8)}"
        parent = log.checkpoint(seq - 1)
        sandbox_id = await self._create_keyed(spec, key, start.snapshot, parent, fill)
        sandbox = self.live[sandbox_id]
        done = await self._rerun(sandbox, start, seq)
        if done.diverged_at is not None:
            await self.bury(sandbox, Reason.CRASHED, f"its branch diverged: {done.detail}")
            raise TrajectoryDiverged(f"the calls before {seq} did not come to the same again: {done.detail}")
        return sandbox_id

    async def rebuild(self, sandbox_id: str, *, may_rerun: bool) -> Rebuilt:
        """Makes a dead sandbox again under its own id."""
        record = self.record(sandbox_id)
        if record.state is not State.DEAD:
            raise SandboxError(f"sandbox {sandbox_id} is {record.state}; only a dead one is made again")
        if record.reason not in (Reason.CRASHED, Reason.HOST_LOST):
            raise SandboxDied(sandbox_id, record.reason or Reason.CRASHED, record.detail)
        driver = await self.starter.choose(record.spec)
        log = await TrajectoryLog.open(self.folders.log(sandbox_id), self.blobs, executor=self._executor)
        try:
            start = origin(log, log.next_seq + 1, self._is_here)
            record = replace(record, state=State.STARTING, driver=driver.name, boot_id=self._boot_id)
            self.folders.save(record)
            started = await self.starter.start(driver, record.spec, self.folders.home(sandbox_id), start.snapshot)
        except BaseException as error:
            await self._never_came_up(record, log, error)
            raise
        sandbox = await self._admit(record, started, log)
        done = await self._rerun(sandbox, start, log.next_seq)
        await log.note("rebuilt", **encode(done), doubtful=[] if may_rerun else doubtful(log, record.spec))
        return done

    def _is_here(self, snapshot: SnapshotRef) -> bool:
        return all(self._store.has_layer(digest) for digest in snapshot.layers)

    async def _rerun(self, sandbox: LiveSandbox, start: Origin, before: int) -> Rebuilt:
        rerun = Rerun(sandbox.execution, sandbox.log, start)
        try:
            async with sandbox.held_still():
                return await rerun.run(before)
        except GuestLost as error:
            death = await sandbox.died(error)
            await self.bury(sandbox, death.reason, death.detail)
            raise death from error

    async def _watch_all(self) -> None:
        for round_ in range(1 << 62):
            await asyncio.sleep(WATCH_S)
            for sandbox in list(self.live.values()):
                try:
                    await self._look_at(sandbox, asks_driver=round_ % DEATH_EVERY == 0)
                except BenthicError:
                    continue  # whoever calls it next will hear of it

    async def _look_at(self, sandbox: LiveSandbox, *, asks_driver: bool) -> None:
        now_s = time.time()
        verdict = sandbox.lifetime.verdict(now_s, is_busy=sandbox.is_busy)
        paused_s = sandbox.record.paused_s
        if verdict == "expired":
            self._begin_burial(sandbox, Reason.EXPIRED, "its time to live is over")
        elif paused_s is not None and now_s - paused_s > self._max_paused_s:
            self._begin_burial(sandbox, Reason.EXPIRED, f"it was paused for {self._max_paused_s:.0f} s")
        elif verdict == "lapsed":
            sandbox.lapse()
        elif asks_driver and (death := await sandbox.machine.death()) is not None:
            self._begin_burial(sandbox, *death)


def _sync_threads() -> ThreadPoolExecutor:
    """Threads that wait for the disk, so that one slow sync holds up no other sandbox."""
    return ThreadPoolExecutor(8, thread_name_prefix="trajectory-sync")


async def all_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; if one fails the others are still ended before its error goes up."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
