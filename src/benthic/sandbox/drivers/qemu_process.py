"""Starting one QEMU: its sockets, its descriptors, its control group, its uid; and knowing it again later."""

import os
import re
import subprocess
from asyncio import StreamReader, StreamWriter, open_unix_connection
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benthic.errors import shown
from benthic.sandbox.drivers.qemu_command import Descriptors, Hardware, command_line, environment
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.linux import Launch, ProcessId
from benthic.sandbox.linux.unix_sockets import listening, short_path

PORT, CONTROL, LOG = "port.sock", "control.sock", "qemu.log"
_WRITTEN = ("memory", "upper")
_NAME = "benthic-"
_HOME = re.compile(rb"[A-Za-z0-9_-]+")


def start_qemu(
    hardware: Hardware,
    home: Path,
    files: dict[str, Path],
    launch: Launch,
    *,
    name: str,
    is_template: bool = False,
    is_clone: bool = False,
) -> subprocess.Popen[bytes]:
    """Starts a QEMU that lives on without us; it listens in `home` from the moment this returns.

    Args:
        files: by the names that `command_line` wants, beside the sockets.
        name: the state root's tag, a hyphen, and a name, for `running`.

    Raises:
        StartFailed: the program is not here, or a file of its cannot be opened.
    """
    with ExitStack() as stack:
        descriptors = Descriptors()
        for role, file in (("port", PORT), ("control", CONTROL)):
            (home / file).unlink(missing_ok=True)
            descriptors.numbers[role] = stack.enter_context(listening(home / file)).fileno()
        for role, path in files.items():
            descriptors.numbers[role] = stack.enter_context(opened(path, is_written=role in _WRITTEN))
        argv = command_line(hardware, descriptors, name=f"{_NAME}{name}", is_template=is_template, is_clone=is_clone)
        log = stack.enter_context((home / LOG).open("wb"))
        try:
            return subprocess.Popen(
                launch.command(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment(os.environ),
                pass_fds=tuple(descriptors.numbers.values()),
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"{argv[0]} cannot be started: {error.strerror}", stage="start qemu") from None


def running(tag: str, program: str = _NAME) -> Iterator[tuple[str, ProcessId]]:
    """The machines of one state root, by the names of their homes, whoever started them.

    Args:
        program: how their names begin; QEMU's, unless given.
    """
    begin = f"{program}{tag}-".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        process = ProcessId.of(int(entry.name))
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile
            continue
        names = [word.removeprefix(begin).replace(b"--", b"_") for word in words if word.startswith(begin)]
        # The shell that joins the group has the same words behind its own, and is the machine a moment later.
        if process is not None and names and _HOME.fullmatch(names[0]):  # which becomes part of a path
            yield names[0].decode(), process


async def connect_port(home: Path) -> tuple[StreamReader, StreamWriter]:
    """A stream to init; QEMU serves one at a time, and another one waits until the older is closed."""
    with short_path(home / PORT) as path:
        return await open_unix_connection(path)


def last_words(home: Path) -> str:
    """The end of what a QEMU has printed."""
    try:
        return (home / LOG).read_bytes()[-600:].decode("utf-8", "replace").strip()
    except OSError:
        return ""


def identity(process: "subprocess.Popen[bytes]", home: Path) -> ProcessId:
    """A started QEMU's pid and start time.

    Raises:
        StartFailed: it has ended already.
    """
    known = ProcessId.of(process.pid)
    if known is None:
        raise StartFailed(f"QEMU ended at once: {shown(last_words(home))}", stage="start qemu")
    return known


@contextmanager
def opened(path: Path, *, is_written: bool) -> Iterator[int]:
    """A file for a machine that may not look for it by its path.

    Raises:
        StartFailed: it cannot be opened.
    """
    try:
        descriptor = os.open(path, (os.O_RDWR if is_written else os.O_RDONLY) | os.O_CLOEXEC)
    except OSError as error:
        raise StartFailed(f"{path} cannot be opened: {error.strerror}", stage="open files") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
