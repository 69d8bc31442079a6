"""A warm Python inside a jail: forks for each call, so that a function starts in milliseconds and leaves nothing.

Runs inside, from this file's text, with nothing but the standard library: nothing here may import Benthic. It is root
of the jail's user namespace and never runs or reads what a caller sends. Each call is one connection:

    zygote -- fork --> monitor: takes a connection, hands on the request, keeps the time, bounds the output, answers
                          `-- fork --> call: first process of a pid namespace, with empty folders of its own, no
                                       rights, the filter of system calls; runs the function, ends

One pair is always made in advance and waits, so that a caller waits for neither fork nor mount. When the monitor ends,
for whatever reason, the call's namespace ends, and with it everything that the call started. Requests and answers are
framed as `zygote_client.py` says. Results are JSON, never pickle.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback
import types
from typing import Any, NamedTuple

PRELOADED = (
    "bisect, collections, dataclasses, datetime, decimal, fractions, functools, heapq, io, itertools, math, operator, "
    "random, re, statistics, string, textwrap, typing"
)
"""Imported once, so that a call finds them in memory."""
LISTENER = 3
_REQUEST, _RESULT = 1000, 1001
"""Descriptors of a call beside the usual three: adjacent, and above any pipe's."""
_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_PIECE = 1 << 16


class Kept:
    """The first and last half of what was written, up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit, self.head, self.tail, self.dropped = limit, bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        """Takes the next piece."""
        room = self.limit // 2 - len(self.head)
        self.head += data[:room]
        self.tail += data[room:] if room > 0 else data
        surplus = len(self.tail) - (self.limit - self.limit // 2)
        if surplus > 0:
            del self.tail[:surplus]
            self.dropped += surplus


class Call(NamedTuple):
    """A call's process, as its monitor holds it: pid, and our ends of its pipes."""

    pid: int
    request: int
    stdout: int
    stderr: int
    result: int


def main() -> None:
    """Keeps one pair waiting until enough calls were made."""
    config = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    for name in PRELOADED.split(", "):
        __import__(name)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # the script and a log on the host until here
        os.dup2(null, stream)
    gc.freeze()  # collections in a fork copy no page of what is warm
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the monitors
    for _ in range(config["num_calls"]):
        taken, taking = os.pipe()
        if os.fork() == 0:
            os.close(taken)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                monitor(taking, config, libc)
            finally:
                os._exit(0)
        os.close(taking)
        os.read(taken, 1)  # a byte once it has a connection, nothing if it has died: either way the next one's turn
        os.close(taken)


def monitor(taking: int, config: "dict[str, Any]", libc: ctypes.CDLL) -> None:
    """Serves one connection."""
    call = start(config, libc)
    connection, _ = socket.socket(fileno=LISTENER).accept()
    os.write(taking, b"1")
    os.close(taking)
    connection.settimeout(10)
    request = receive(connection)
    timeout_s = json.loads(request)["timeout_s"]
    connection.sendall(b"\1")  # from here on the call may have begun
    connection.settimeout(None)
    began = time.monotonic()
    with contextlib.suppress(BrokenPipeError), os.fdopen(call.request, "wb") as pipe:
        pipe.write(request)
    printed = {call.stdout: Kept(config["output_bytes"]), call.stderr: Kept(config["output_bytes"])}
    value = bytearray()
    deadline = None if timeout_s is None else began + timeout_s
    in_time = follow(call, connection, printed, value, deadline, config["result_bytes"])
    with contextlib.suppress(ProcessLookupError):
        os.kill(call.pid, signal.SIGKILL)
    _, status, usage = os.wait4(call.pid, 0)
    answer = {
        "in_time": in_time,
        "returncode": os.waitstatus_to_exitcode(status),
        "too_long": len(value) > config["result_bytes"],
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "duration_s": time.monotonic() - began,
    }
    parts = [bytes(value[: config["result_bytes"]]), *(bytes(kept.head + kept.tail) for kept in printed.values())]
    header = json.dumps(answer | {"lengths": [len(part) for part in parts]}).encode()
    connection.sendall(b"".join([struct.pack("<I", len(header)), header, *parts]))


def follow(
    call: Call,
    connection: socket.socket,
    printed: "dict[int, Kept]",
    value: bytearray,
    deadline: "float | None",
    result_bytes: int,
) -> bool:
    """Reads what the call writes until it has ended; False if its time ran out or the host went away."""
    poll = select.poll()
    for descriptor in (*printed, call.result):
        poll.register(descriptor, select.POLLIN)
    poll.register(connection, select.POLLRDHUP)
    # Background processes may hold stdout open: the call has ended when its result's pipe has.
    while True:
        wait_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = poll.poll(wait_ms)
        if not ready and wait_ms is not None:
            return False
        descriptors = [descriptor for descriptor, _ in ready]
        for descriptor in descriptors:
            if descriptor in printed:
                data = os.read(descriptor, _PIECE)
                printed[descriptor].add(data)
                if not data:
                    poll.unregister(descriptor)
        if connection.fileno() in descriptors:
            return False
        if call.result in descriptors:
            data = os.read(call.result, _PIECE)
            value += data[: result_bytes + 1 - len(value)]
            if not data:
                break
    for descriptor, kept in printed.items():
        os.set_blocking(descriptor, False)
        with contextlib.suppress(BlockingIOError):
            while data := os.read(descriptor, _PIECE):
                kept.add(data)
                if kept.dropped > 1 << 26:  # what goes on printing is not the function any more
                    break
    return True


def start(config: "dict[str, Any]", libc: ctypes.CDLL) -> Call:
    """Forks a call into namespaces of its own, where it waits for its request."""
    request, *outputs = [os.pipe() for _ in range(4)]
    check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWPID), "unshare")
    pid = os.fork()
    if pid == 0:
        code = 125
        try:
            enter([request[0], *(write for _, write in outputs)], config, libc)
            code = run(config)
        except BaseException:  # noqa: BLE001 - a forked process must never return into its parent's code
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(request[0])
    for _, write in outputs:
        os.close(write)
    return Call(pid, request[1], *(read for read, _ in outputs))


def enter(descriptors: "list[int]", config: "dict[str, Any]", libc: ctypes.CDLL) -> None:
    """Gives up everything that a call must not have. Takes the request's pipe, stdout, stderr, the result's pipe."""
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for place, wanted in enumerate((_REQUEST, 1, 2, _RESULT)):
        os.dup2(descriptors[place], wanted)
    os.closerange(3, _REQUEST)
    os.closerange(_RESULT + 1, 1 << 16)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")
    if config["folders"]:
        mount_folders(config, libc)
    os.chdir("/work")
    for name, limit in config["rlimits"]:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (limit, limit))
    if os.getuid() != config["uid"]:
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
    drop_capabilities(libc)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of uid has taken it back
    os.setsid()
    check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "renounce new privileges")
    code = bytes.fromhex(config["seccomp"])
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    check(libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0), "load the filter of system calls")


def mount_folders(config: "dict[str, Any]", libc: ctypes.CDLL) -> None:
    """Empty folders in memory over those that calls may write to."""
    check(libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "cut off mounts")
    options = f"size={config['disk_bytes']},nr_inodes={config['num_files']},mode=1777".encode()
    for folder in config["folders"]:
        flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
        check(libc.mount(b"tmpfs", folder.encode(), b"tmpfs", flags, options), f"mount {folder}")


def drop_capabilities(libc: ctypes.CDLL) -> None:
    """None is kept, and none can come back."""
    header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    check(libc.capset(header, none), "give up capabilities")


def run(config: "dict[str, Any]") -> int:
    """Waits for the request, runs the function and writes what it returned, or its traceback, as JSON."""
    with os.fdopen(_REQUEST, "rb") as pipe:
        text = pipe.read()
    if not text:
        return 124  # the monitor has no call for us
    request = json.loads(text)
    module = types.ModuleType("function")
    sys.modules["function"] = module
    sys.argv = ["function"]
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    code = 0
    try:
        exec(compile(request["source"], "<function>", "exec"), module.__dict__)
        value = getattr(module, request["name"])(*request["args"], **request["kwargs"])
        answer = json.dumps({"value": value}, allow_nan=False)
    except BaseException as error:  # noqa: BLE001 - the function's error is the answer
        code = 1
        # Our own line says nothing to who wrote the function.
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        answer = json.dumps({"error": "".join(traceback.format_exception(type(error), error, trace))[-(1 << 16) :]})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    data = memoryview(answer.encode())
    while data:
        data = data[os.write(_RESULT, data) :]
    return code


def receive(connection: socket.socket) -> bytes:
    """One frame."""
    (length,) = struct.unpack("<I", receive_exactly(connection, 4))
    return receive_exactly(connection, length)


def receive_exactly(connection: socket.socket, length: int) -> bytes:
    """So many bytes; EOFError if there are fewer."""
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise EOFError("the host went away")
        data += piece
    return bytes(data)


def check(returned: int, what: str) -> None:
    """OSError for a C call that failed."""
    if returned:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")


if __name__ == "__main__":
    main()
