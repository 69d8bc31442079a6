"""How QEMU runs a guest's instructions on this machine: by KVM where a guest boots with it, else by translation (TCG).

`/dev/kvm` alone proves nothing: a kernel that offers it without processor support (PVM) accepts every call and then
runs an ordinary guest a thousand times too slowly.
"""

import ctypes
import mmap
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TSC_WINDOW_S = 0.05
TRANSLATED_CPU = "max,-smap,-umip,-la57,-pku,-mpx,-svm,-erms"
"""All instructions that programs may look for. What only a kernel uses costs most where each page table level and each
guarded copy is emulated, and a clone translates all of it anew. Without ERMS, kernel and libraries copy by eight bytes
instead of by one, each of which is an emulated step."""
_RDTSC = bytes.fromhex("0f3148c1e2204809d0c3")  # rdtsc; shl rdx, 32; or rax, rdx; ret


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One way to run a guest. `QemuDriver` chooses once, by booting."""

    name: Literal["tcg", "kvm"]
    tsc_khz: int = 0
    """Of this host's time stamp counter, which a translated guest reads; 0 if unknown."""

    def arguments(self) -> tuple[str, ...]:
        """QEMU's arguments."""
        if self.name == "kvm":
            return "-accel", "kvm", "-cpu", "host"
        return "-accel", "tcg,thread=multi", "-cpu", TRANSLATED_CPU

    def kernel_words(self) -> str:
        """What the guest's kernel has to be told.

        On a busy host an emulated timer is too irregular for the kernel to measure its counter by. A `microvm` has no
        other clock, so its boot then hung, most times; with the rate given it never did.
        """
        return f"tsc_early_khz={self.tsc_khz}" if self.name == "tcg" and self.tsc_khz else ""

    def describe(self) -> str:
        """For people."""
        return "KVM" if self.name == "kvm" else "translated (TCG)"


def tcg() -> Accelerator:
    """Translation, on any machine."""
    return Accelerator("tcg", _measure_tsc_khz())


def kvm_obstacle(device: Path = Path("/dev/kvm"), *, has_other_uid: bool = False) -> str | None:
    """Why KVM cannot work here, or None if only a boot can tell.

    Args:
        has_other_uid: QEMU runs under a uid that is in no group.
    """
    if not device.exists():
        return f"no {device}"
    if has_other_uid and device.stat().st_mode & 0o006 != 0o006:
        return f"{device} is not open to all users, and machines run under uids of their own; chmod 666 {device}"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"this user may not open {device}; add it to the group kvm"
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    if not {"vmx", "svm"} & set(flags.split()):
        return f"{device} is there, but the processor shows neither vmx nor svm: an ordinary guest does not boot on it"
    return None


def _measure_tsc_khz() -> int:
    """Ticks of the time stamp counter in a millisecond, or 0 where programs may make no code."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return 0
    page.write(_RDTSC)
    view = ctypes.c_char.from_buffer(page)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(view))

    def sample() -> tuple[int, int]:
        # The read with the least time around it was interrupted least.
        samples = [(time.monotonic_ns(), read(), time.monotonic_ns()) for _ in range(20)]
        before, ticks, after = min(samples, key=lambda sample: sample[2] - sample[0])
        return (before + after) // 2, ticks

    first_ns, first = sample()
    time.sleep(TSC_WINDOW_S)
    last_ns, last = sample()
    return round((last - first) * 1e6 / (last_ns - first_ns) / 100) * 100
