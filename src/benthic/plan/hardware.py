"""Devices and what bounds them: memory, bandwidth, rates of products, links. Dense rates, one direction of a link.

Datasheet numbers are the makers'; measured ones were seen on an H200 with the best kernel known for each: a copy of
large tensors (read and write together), products of 8192^3, a copy between two devices.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benthic.errors import ConfigError

Format = Literal["fp4", "fp8", "bf16", "fp32"]
Source = Literal["measured", "datasheet"]

GB = 1_000_000_000
TERA = 1_000_000_000_000


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Upper bounds of one device: bytes a second from memory, FLOP a second by format, bytes a second to others."""

    bandwidth: float
    rates: Mapping[Format, float]
    link: float

    def rate(self, form: Format) -> float:
        """FLOP a second of products in that format; a device without it takes the next wider one."""
        wider: tuple[Format, ...] = ("fp4", "fp8", "bf16")
        if form == "fp32":
            return self.rates["bf16"] / 2  # as tf32
        return next(self.rates[name] for name in wider[wider.index(form) :] if name in self.rates)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. `node_size` of them share fast links; `network` is each one's way to other nodes, bytes/s."""

    name: str
    memory_bytes: int
    datasheet: Ceilings
    measured: Ceilings | None = None
    node_size: int = 8
    network: float = 50 * GB


@dataclass(frozen=True, slots=True)
class Machine:
    """So many devices of one kind."""

    device: Device
    num_devices: int

    @property
    def name(self) -> str:
        """As on the command line: `h200x8`."""
        return f"{self.device.name}x{self.num_devices}"

    def ceilings(self, source: Source) -> Ceilings:
        """Bounds of each device; measured ones where they are known and wanted."""
        device = self.device
        return device.measured if source == "measured" and device.measured is not None else device.datasheet

    def source(self, wanted: Source) -> Source:
        """Where `ceilings(wanted)` come from."""
        return "measured" if wanted == "measured" and self.device.measured is not None else "datasheet"

    def link(self, num_devices: int, source: Source) -> float:
        """Bytes a second that one of `num_devices` can send to the others: over the network beyond one node."""
        return self.ceilings(source).link if num_devices <= self.device.node_size else self.device.network


def _ceilings(bandwidth_tb: float, link_gb: float, *, bf16: float, **rates: float) -> Ceilings:
    by_format: dict[Format, float] = {"bf16": bf16 * TERA}
    if "fp8" in rates:
        by_format["fp8"] = rates["fp8"] * TERA
    if "fp4" in rates:
        by_format["fp4"] = rates["fp4"] * TERA
    return Ceilings(bandwidth_tb * TERA, by_format, link_gb * GB)


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("a100", 80 * GB, _ceilings(2.04, 300, bf16=312)),
        Device("h20", 96 * GB, _ceilings(4.0, 450, bf16=148, fp8=296)),
        Device("h800", 80 * GB, _ceilings(3.35, 200, bf16=989, fp8=1979)),
        Device("h100", 80 * GB, _ceilings(3.35, 450, bf16=989, fp8=1979)),
        Device(
            "h200",
            141 * GB,
            _ceilings(4.8, 450, bf16=989, fp8=1979),
            measured=_ceilings(4.26, 394, bf16=765, fp8=1447),
        ),
        Device("b200", 180 * GB, _ceilings(8.0, 900, bf16=2250, fp8=4500, fp4=9000)),
    )
}


def parse_machine(text: str) -> Machine:
    """`h200x8` -> eight H200; a name alone is one device.

    Raises:
        ConfigError: no such device, or no such number of them.
    """
    match = re.fullmatch(r"([a-z]+[0-9]+[a-z]*?)(?:x([0-9]+))?", text.strip().lower())
    if match is None or match[1] not in DEVICES:
        raise ConfigError(
            f"the hardware is {text!r}; it must be a device and how many, such as h200x8; known are "
            f"{', '.join(sorted(DEVICES))}"
        )
    count = int(match[2] or 1)
    if not 1 <= count <= 4096:
        raise ConfigError(f"the hardware is {text!r}; it must have 1 to 4096 devices")
    return Machine(DEVICES[match[1]], count)


def source_named(word: str) -> Source:
    """Which ceilings are meant.

    Raises:
        ConfigError: none.
    """
    if word == "measured":
        return "measured"
    if word == "datasheet":
        return "datasheet"
    raise ConfigError(f"the ceilings are {word!r}; they must be measured or datasheet")
