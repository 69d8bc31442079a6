"""The filter of system calls that every command carries: a deny list from `denied_calls.toml`, compiled to BPF.

A container's calls go to the host's kernel, so what a command may ask of it decides what it can attack. The filter
is inherited by everything a command starts and cannot be taken off. What is denied answers with an error, never with
death, since programs try such calls and go on; a program of another machine (32-bit on x86-64) is ended.

BPF of seccomp: `linux/Documentation/userspace-api/seccomp_filter.rst`; one instruction is 8 bytes,
`(code: u16, jump if true: u8, jump if false: u8, operand: u32)`.
"""

import errno
import platform
import struct
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF_0000, 0x0005_0000, 0x8000_0000
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16
"""Offsets in `struct seccomp_data`; arguments are 8 bytes each, the low half first."""
_MACHINES = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
"""AUDIT_ARCH_*: how the kernel names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedCall:
    """One entry of the list."""

    name: str
    why: str
    x86_64: int | None = None
    aarch64: int | None = None
    errno: str = "EPERM"
    argument: int | None = None
    """Which one decides, counted from 0; None: the call is denied whatever they are."""
    values: tuple[int, ...] = ()
    allowed: tuple[int, ...] = ()
    mask: int = 0

    def number(self, machine: str) -> int | None:
        """Of the call on that machine; None if it is not there."""
        return self.x86_64 if machine == "x86_64" else self.aarch64


def denied_calls() -> tuple[DeniedCall, ...]:
    """The list."""
    return tuple(_entry(fields) for fields in _table()["calls"])


def build_filter(machine: str = "", *, without: str = "", error: int = errno.EPERM) -> bytes:
    """The filter as an array of `struct sock_filter`.

    Args:
        machine: as `platform.machine()` names it; empty is this one.
        without: leaves one call allowed, for tests.
        error: what a denied call answers with, where its entry names no other.

    Raises:
        ValueError: a machine that the list has no numbers for.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        raise ValueError(f"no filter of system calls for {machine!r}: denied_calls.toml has {', '.join(_MACHINES)}")
    program = [
        _instruction(_LOAD, _MACHINE),
        _instruction(_EQUAL, _MACHINES[machine], if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        # On x86-64 this also denies the calls of x32, whose numbers begin at 2**30.
        _instruction(_GREATER, _table()["newest"], if_false=1),
        _instruction(_RETURN, _ERROR | errno.ENOSYS),
    ]
    for call in denied_calls():
        number = call.number(machine)
        if number is not None and call.name != without:
            program += _denial(call, number, error)
    program.append(_instruction(_RETURN, _ALLOW))
    assert len(program) <= 4096, "the kernel takes no longer filter"
    return b"".join(program)


def _entry(fields: dict[str, Any]) -> DeniedCall:
    lists: dict[str, Any] = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return DeniedCall(**{**fields, **lists})


def _denial(call: DeniedCall, number: int, error: int) -> list[bytes]:
    answer = _instruction(_RETURN, _ERROR | (error if call.errno == "EPERM" else getattr(errno, call.errno)))
    if call.argument is None:
        return [_instruction(_EQUAL, number, if_false=1), answer]
    body = [_instruction(_LOAD, _FIRST_ARGUMENT + 8 * call.argument)]
    for value in call.values:
        body += [_instruction(_EQUAL, value, if_false=1), answer]
    if call.mask:
        body += [_instruction(_ANY_BIT, call.mask, if_false=1), answer]
    for index, value in enumerate(call.allowed):
        # Past the others and the answer.
        body.append(_instruction(_EQUAL, value, if_true=len(call.allowed) - index))
    if call.allowed:
        body.append(answer)
    body.append(_instruction(_LOAD, _NUMBER))  # what the next entry looks at
    return [_instruction(_EQUAL, number, if_false=len(body)), *body]


def _instruction(code: int, operand: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "denied_calls.toml").read_text())
