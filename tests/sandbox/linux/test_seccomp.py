"""Every entry of the deny list is asked of this kernel with the filter and with the filter but for that entry."""

import errno
import json
import struct
import subprocess
import sys
from typing import Any

import pytest

from benthic.sandbox.linux import build_filter, denied_calls

MARK = errno.ERFKILL
"""An error that the kernel gives to none of these calls, so what answers is seen."""
HARMLESS: dict[str, list[int]] = {
    # Arguments that do nothing even for root where all of 1, 1, 1, 1, 1, 1 might.
    "clone": [0x1002_0200],  # a new user namespace with a shared folder: never allowed together
    "ioctl": [-1, 0x5412],
    "iopl": [0],
    "kexec_load": [0, 10_000, 0, 0],
    "modify_ldt": [0, 0, 0],
    "personality": [0x0040_0000],
    "ptrace": [0xFFFF, 0],
    "setns": [-1, 0],
    "pidfd_getfd": [-1, 0, 0],
    "socket": [40, 1, 0],
    "syslog": [-1, 0, 0],
    "unshare": [0],
    "reboot": [0, 0, 0, 0],
}
# Each case in a fork of one interpreter; argv-free, so that the list of cases may be long.
PROGRAM = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
def ask(filter, number, arguments):
    reader, writer = os.pipe()
    if not os.fork():
        os.setsid()
        program = Program(len(filter) // 8, filter)
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
        ctypes.set_errno(0)
        value = libc.syscall(*[ctypes.c_long(word) for word in (number, *arguments)])
        os.write(writer, str(ctypes.get_errno() if value == -1 else 0).encode())
        os._exit(0)
    os.close(writer)
    answer = os.read(reader, 20)
    os.close(reader)
    os.wait()
    return int(answer) if answer else None
print(json.dumps([ask(bytes.fromhex(f), n, a) for f, n, a in json.load(sys.stdin)]))
"""


def errors_of(cases: list[tuple[bytes, int, list[int]]]) -> list[int | None]:
    """The error number each call got, 0 for none, None where the process was ended."""
    text = json.dumps([(program.hex(), number, arguments) for program, number, arguments in cases])
    done = subprocess.run([sys.executable, "-ISc", PROGRAM], input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    answers: list[int | None] = json.loads(done.stdout)
    return answers


def machine_or_skip() -> str:
    import platform

    if platform.machine() not in ("x86_64", "aarch64"):
        pytest.skip(f"no list of calls for {platform.machine()}")
    return platform.machine()


def arguments_of(call: Any) -> list[int]:
    if call.values:
        return [-1, call.values[0]]
    return HARMLESS.get(call.name, [1] * 6)


def test_each_entry_answers_with_the_filter_and_reaches_the_kernel_without_it() -> None:
    machine = machine_or_skip()
    calls = [call for call in denied_calls() if call.number(machine) is not None]
    full = build_filter(error=MARK)
    with_it = errors_of([(full, call.number(machine), arguments_of(call)) for call in calls])
    without = errors_of([(build_filter(error=MARK, without=c.name), c.number(machine), arguments_of(c)) for c in calls])
    for call, denied, reached in zip(calls, with_it, without, strict=True):
        assert denied == (errno.ENOSYS if call.errno == "ENOSYS" else MARK), call.name
        assert reached != MARK, call.name
        assert call.errno != "ENOSYS" or reached != errno.ENOSYS, call.name


def test_allowed_arguments_of_a_partly_denied_call_pass() -> None:
    machine = machine_or_skip()
    numbers = {call.name: call.number(machine) for call in denied_calls()}
    cases = [("socket", [1, 1, 0]), ("socket", [10, 1, 0]), ("personality", [0xFFFF_FFFF]), ("ioctl", [-1, 0x5401])]
    answers = errors_of([(build_filter(error=MARK), numbers[name], arguments) for name, arguments in cases])
    assert [answer == MARK for answer in answers] == [False] * 4
    tricks = [("socket", [40 | 1 << 40, 1, 0]), ("ioctl", [-1, 0x5412 | 1 << 33]), ("clone", [1 << 60 | 0x1000_0000])]
    answers = errors_of([(build_filter(error=MARK), numbers[name], arguments) for name, arguments in tricks])
    assert answers == [MARK] * 3, "high halves, which the kernel ignores, hide nothing"


def test_calls_younger_than_the_list_and_those_of_x32_do_not_exist() -> None:
    machine = machine_or_skip()
    cases = [(build_filter(), number, [0] * 6) for number in (463, 600, 0x4000_0000, 0x4000_0065)]
    assert errors_of(cases) == [errno.ENOSYS] * len(cases)
    getpid = 39 if machine == "x86_64" else 172
    assert errors_of([(build_filter(), getpid, [])]) == [0]


def test_a_program_of_another_machine_is_ended() -> None:
    machine = machine_or_skip()
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[machine]
    assert errors_of([(build_filter(other), 1, [])]) == [None]


def test_every_entry_has_a_reason_and_numbers_are_unique_but_for_arguments() -> None:
    for machine in ("x86_64", "aarch64"):
        whole = [call.number(machine) for call in denied_calls() if call.argument is None]
        numbers = [number for number in whole if number is not None]
        assert len(numbers) == len(set(numbers)), machine
    assert all(len(call.why) > 10 for call in denied_calls())


def test_a_machine_without_numbers_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'riscv64'"):
        build_filter("riscv64")


def test_jumps_of_the_program_stay_inside_it_and_forward() -> None:
    for machine in ("x86_64", "aarch64"):
        program = list(struct.iter_unpack("=HBBI", build_filter(machine)))
        assert len(program) < 4096
        for index, (code, if_true, if_false, _) in enumerate(program):
            assert code in (0x06, 0x15, 0x20, 0x25, 0x45)
            assert code == 0x06 or index + 1 + max(if_true, if_false) < len(program)
        assert program[-1][0] == 0x06
