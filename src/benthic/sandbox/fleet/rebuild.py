"""Makes a lost sandbox again on another host that shares its trajectories: same id, same log, nobody need know.

A log is the only truth of what a sandbox was asked and answered, so only a host that can read it takes over. What
cannot be made again exactly is given up: its client's program would go on from a state that it has never seen.
"""

import logging

from benthic.sandbox.errors import OutcomeUnknown, SandboxDied
from benthic.sandbox.fleet.gateway import Gateway
from benthic.sandbox.fleet.placement import place
from benthic.sandbox.fleet.sandbox_rows import SandboxRow
from benthic.sandbox.records import Reason, State

_log = logging.getLogger(__name__)


async def rebuild(gateway: Gateway, row: SandboxRow) -> str:
    """Makes a sandbox again, or gives it up.

    Returns:
        `exact`, `diverged` or `lost`.

    Raises:
        BenthicError: it could not be tried now; it can be later.
    """
    shared = gateway.hosts.get(row.host).status.trajectories
    others = {
        entry.status.name
        for entry in gateway.hosts.all()
        if shared and entry.status.trajectories == shared and entry.status.name != row.host
    }
    if not others:
        return _give_up(gateway, row, "lost", f"host {row.host} sends no heartbeats, and no other has its trajectories")
    spec = row.spec
    candidates = [host for host in gateway.hosts.candidates(spec) if host.name in others]
    name = place(candidates, spec, frozenset(), gateway.rng)
    gateway.hosts.promise(name, spec)
    host = gateway.hosts.get(name).host
    try:
        found = await host.rebuild(row.id)
    except (SandboxDied, OutcomeUnknown) as error:
        return _give_up(gateway, row, "lost", f"host {row.host} was lost; {name} could not rebuild it: {error}")
    if found.diverged_at is not None:
        await host.close(row.id)
        detail = f"host {row.host} was lost; on {name}, call {found.diverged_at} came to something else: {found.detail}"
        return _give_up(gateway, row, "diverged", detail)
    gateway.sandboxes.move(
        row.id, name, f"rebuilt on {name} after {row.host} was lost: {found.num_run} calls run again"
    )
    _log.warning("sandbox %s of lost host %s was rebuilt on %s", row.id, row.host, name)
    return "exact"


def _give_up(gateway: Gateway, row: SandboxRow, outcome: str, detail: str) -> str:
    gateway.sandboxes.set_state(row.id, State.DEAD, Reason.HOST_LOST, detail)
    return outcome
