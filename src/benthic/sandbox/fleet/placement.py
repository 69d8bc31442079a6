"""Which host gets the next sandbox: those that can run it and have room, then the emptier of two drawn at random.

The best of two spreads a storm that the heartbeats do not show yet; taking the best of all would send all of it to one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benthic.errors import CapacityError
from benthic.sandbox.errors import NotSupported
from benthic.sandbox.fleet.status import Capacity, Load
from benthic.sandbox.records import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A host as placement sees it."""

    name: str
    is_open: bool
    """Neither lost nor draining."""
    can_run: bool
    capacity: Capacity
    load: Load
    """Of its last heartbeat, and what was placed there since."""


def place(candidates: Sequence[Candidate], spec: SandboxSpec, refused: frozenset[str], rng: random.Random) -> str:
    """The name of the host to ask.

    Args:
        candidates: every host.
        spec: of the new sandbox.
        refused: hosts that have refused it just now.
        rng: draws the two.

    Raises:
        NotSupported: no host can ever run it.
        CapacityError: none has room now.
    """
    able = [host for host in candidates if host.can_run]
    if candidates and not able:
        driver = f" with driver {spec.driver}" if spec.driver else ""
        raise NotSupported(f"no host of this fleet runs sandboxes of kind {spec.kind}{driver}; see GET /hosts")
    fitting = [
        host
        for host in able
        if host.is_open and host.name not in refused and host.load.with_more(spec).share_of(host.capacity) <= 1
    ]
    if not fitting:
        raise CapacityError(f"none of {len(able)} hosts has room for one more sandbox of kind {spec.kind} now")
    pair = rng.sample(fitting, min(2, len(fitting)))
    return min(pair, key=lambda host: host.load.share_of(host.capacity)).name
