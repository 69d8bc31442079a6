"""Finds who can go on with a sandbox whose host is lost, among the hosts that share its trajectories.

Its log has one writer at a time, whatever the gateway believes: a host that is only cut off still holds it, and nobody
else can take over. So every host is simply asked, the old one first: whoever has the sandbox keeps it, whoever may
write its log makes it again. What comes to something else than the log says is given up, since its client's program
would go on from a state that it has never seen.
"""

import logging
from typing import Literal, NamedTuple

from benthic.errors import CapacityError
from benthic.sandbox.errors import HostUnreachable, NotSupported, SandboxDied, TrajectoryHeld
from benthic.sandbox.fleet.gateway import Gateway
from benthic.sandbox.fleet.placement import place
from benthic.sandbox.fleet.sandbox_rows import SandboxRow
from benthic.sandbox.host import Rebuilt
from benthic.sandbox.records import Reason, State

_log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """What came of it: `later` means that nobody can do it now."""

    word: Literal["exact", "diverged", "lost", "later"]
    rebuilt: Rebuilt | None = None


async def rebuild(gateway: Gateway, row: SandboxRow) -> Outcome:
    """Goes on with a sandbox on some host, or gives it up."""
    sharing = _sharing(gateway, row)
    if gateway.hosts.get(row.host).is_lost and not sharing - {row.host}:
        detail = f"host {row.host} sends no heartbeats, and no other has its trajectories"
        return _give_up(gateway, row, Outcome("lost"), detail)
    for name in _in_order(gateway, row, sharing):
        host = gateway.hosts.get(name).host
        try:
            found = await host.rebuild(row.id)
        except (TrajectoryHeld, CapacityError, HostUnreachable, NotSupported) as error:
            _log.warning("sandbox %s cannot go on on %s: %s", row.id, name, error)
            continue
        except SandboxDied as error:
            return _give_up(gateway, row, Outcome("lost"), f"host {row.host} was lost; {name} says: {error}")
        if found.diverged_at is None:
            gateway.sandboxes.move(
                row.id, name, f"host {row.host} was lost; on {name}, {found.num_run} calls ran again"
            )
            _log.warning("sandbox %s of lost host %s goes on on %s", row.id, row.host, name)
            return Outcome("exact", found)
        await host.close(row.id)
        detail = f"host {row.host} was lost; on {name}, call {found.diverged_at} came to something else: {found.detail}"
        return _give_up(gateway, row, Outcome("diverged", found), detail)
    return Outcome("later")


def _sharing(gateway: Gateway, row: SandboxRow) -> set[str]:
    shared = gateway.hosts.get(row.host).status.trajectories
    return {entry.status.name for entry in gateway.hosts.all() if shared and entry.status.trajectories == shared}


def _in_order(gateway: Gateway, row: SandboxRow, sharing: set[str]) -> list[str]:
    """Its own host, if that is back, then the others as placement likes them."""
    spec = row.spec
    order = [] if gateway.hosts.get(row.host).is_lost else [row.host]
    others = [host for host in gateway.hosts.candidates(spec) if host.name in sharing - {row.host}]
    refused: frozenset[str] = frozenset()
    while len(refused) < len(others):
        try:
            name = place(others, spec, refused, gateway.rng)
        except (CapacityError, NotSupported):
            break
        order.append(name)
        refused |= {name}
    return order


def _give_up(gateway: Gateway, row: SandboxRow, outcome: Outcome, detail: str) -> Outcome:
    gateway.sandboxes.set_state(row.id, State.DEAD, Reason.HOST_LOST, detail)
    return outcome
