"""Box 1 meets box 3: how a machine's devices can share a model, what that leaves, and how many conversations fit.

Two ways to share. TP: every device computes a cut of every matrix for all conversations; the latent rows, entries and
indexer keys serve all heads, so each device keeps the whole state. EP: every device has its share of the experts
whole, a copy of the rest, and its own conversations, whose tokens travel to the experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from benthic.cache.budget import KEPT_FREE
from benthic.cache.workspace import context_bytes
from benthic.models.config import ModelConfig
from benthic.plan.hardware import Device, Machine
from benthic.plan.state import PASS_ROWS, State
from benthic.plan.weights import Holding

Layout = Literal["TP", "EP"]

WORKSPACE_BYTES = 256 << 20
"""What attention's temporaries may take, as the engine's `workspace_bytes` has it by default."""

MOST_DEVICES = 512


@dataclass(frozen=True, slots=True)
class Fit:
    """A model on groups of `num_devices` devices of a machine; every group serves its own conversations.

    `num_idle` devices belong to no group.
    `weight_bytes` and `room_bytes` are of one device: what it holds, and what is left for the cache (below 0: too
    little). `conversations` is the number that fits, over all groups.
    """

    layout: Layout
    num_devices: int
    num_groups: int
    weight_bytes: int
    room_bytes: int
    conversations: int
    num_idle: int = 0

    @property
    def name(self) -> str:
        """`TP2 x4`: four groups of two devices; `EP2 x1, 1 idle`: of three; one device alone has no layout."""
        group = "1 device" if self.num_devices == 1 else f"{self.layout}{self.num_devices}"
        if self.num_idle:
            return f"{group} x{self.num_groups}, {self.num_idle} idle"
        return group if self.num_groups == 1 else f"{group} x{self.num_groups}"

    @property
    def fits(self) -> bool:
        """Whether the weights leave room."""
        return self.room_bytes > 0


def fits(
    config: ModelConfig, held: tuple[Holding, ...], state: State, machine: Machine, context: int
) -> tuple[Fit, ...]:
    """Every way to share the machine's devices, the smallest groups first.

    Groups of a machine whose size is no power of two may leave devices idle: three never hold less than two.
    """
    count = machine.num_devices
    may_idle = count & (count - 1) != 0
    found = []
    for size in range(1, count + 1):
        num_groups, num_idle = divmod(count, size)
        if num_idle == 0 or may_idle:
            found += [
                replace(
                    fit_of(config, held, state, machine.device, layout, size, num_groups, context), num_idle=num_idle
                )
                for layout in _layouts(config, size)
            ]
    return tuple(found)


def fit_of(
    config: ModelConfig,
    held: tuple[Holding, ...],
    state: State,
    device: Device,
    layout: Layout,
    size: int,
    num_groups: int,
    context: int,
) -> Fit:
    """One way: groups of `size` devices."""
    weights = sum(device_bytes(item, layout, size) for item in held)
    workspace = context_bytes(
        config, state.geometry, context, num_rows=PASS_ROWS, workspace_bytes=WORKSPACE_BYTES, min_rows=1
    )
    # As the engine reckons: a share of what the weights leave is left to everybody else.
    room = int((device.memory_bytes - weights) * (1 - KEPT_FREE)) - workspace
    share = state.conversations_in(room, context)
    return Fit(layout, size, num_groups, weights, room, num_groups * share * (size if layout == "EP" else 1))


def least_devices(
    config: ModelConfig, held: tuple[Holding, ...], state: State, device: Device, context: int
) -> Fit | None:
    """The smallest group of 1, 2, 4 ... 512 that holds the weights and one such conversation; None: none does."""
    for size in range(1, MOST_DEVICES + 1):
        ways = [
            fit_of(config, held, state, device, layout, size, 1, context)
            for layout in _layouts(config, size)
            if size & (size - 1) == 0
        ]
        good = [fit for fit in ways if fit.conversations]
        if good:
            return max(good, key=lambda fit: fit.conversations)
    return None


def device_bytes(item: Holding, layout: Layout, size: int) -> int:
    """What one device of a group holds of it."""
    is_divided = item.split == "expert" or (item.split == "cut" and layout == "TP")
    return -(-item.num_bytes // size) if is_divided else item.num_bytes


def _layouts(config: ModelConfig, size: int) -> Iterator[Layout]:
    """Those in which the model divides evenly; one device alone is called TP."""
    groups = (config.num_attention_heads, config.o_groups or size, config.moe_intermediate_size)
    if all(count % size == 0 for count in groups):
        yield "TP"
    if size > 1 and config.n_routed_experts % size == 0:
        yield "EP"
