"""Files asked for by the host are looked up inside: no link, special file or archive leads anywhere else."""

import asyncio
import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.sandbox import Command
from benthic.sandbox.errors import PathError
from tests.sandbox.security.kinds import Inside


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of the host that everybody may read."""
    file = Path(f"/tmp/benthic-secret-{os.getpid()}")
    file.write_text("of the host")
    yield file
    file.unlink()


def test_links_to_the_hosts_paths_lead_to_the_sandboxs_own(inside: Inside, secret: Path) -> None:
    inside.run(f"ln -s {secret} /work/link; ln -s / /work/root; ln -s ../../../../../../{secret} /work/up")
    for path in (
        "/work/link",
        f"/work/root{secret}",
        "/work/up",
        f"/work/../../..{secret}",
        "/proc/self/root" + str(secret),
    ):
        with pytest.raises(PathError):
            inside.wait(inside.guest.files.read(path))


def test_writing_through_a_link_changes_nothing_of_the_host(inside: Inside, secret: Path) -> None:
    inside.run(f"ln -s {secret} /work/link; ln -s /tmp /work/folder")
    for path in ("/work/link", f"/work/folder/{secret.name}"):
        for atomic in (True, False):
            with contextlib.suppress(PathError):
                inside.wait(inside.guest.files.write(path, b"changed", atomic=atomic))
    assert secret.read_text() == "of the host"


@pytest.mark.parametrize(
    "path", ["/work/fifo", "/dev/zero", "/dev/tty", "/proc/kmsg", "/work", "/proc/1/mem", "/proc/self/pagemap"]
)
def test_reading_what_is_no_file_or_has_no_end_is_refused_in_time(inside: Inside, path: str) -> None:
    inside.run("mkfifo /work/fifo; true")

    async def read() -> bytes:
        return await asyncio.wait_for(inside.guest.files.read(path, max_bytes=100_000), 10)

    with pytest.raises(PathError):
        inside.wait(read())


def archive(*entries: tarfile.TarInfo) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for entry in entries:
            tar.addfile(entry, io.BytesIO(b"x" * entry.size) if entry.isreg() else None)
    return made.getvalue()


def entry(name: str, type_: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode, made.size = type_, target, mode, 1 if type_ == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../out")],
        [entry("a/../../out")],
        [entry("/tmp/out")],
        [entry("link", tarfile.SYMTYPE, "/tmp"), entry("link/out")],
        [entry("hard", tarfile.LNKTYPE, "/etc/passwd"), entry("hard")],
        [entry("hard", tarfile.LNKTYPE, "../../etc/passwd")],
        [entry("device", tarfile.BLKTYPE)],
        [entry("tty", tarfile.CHRTYPE)],
        [entry("fifo", tarfile.FIFOTYPE)],
    ],
    ids=lambda entries: entries[-1].name,
)
def test_archives_that_reach_out_of_their_folder_are_refused(inside: Inside, entries: list[tarfile.TarInfo]) -> None:
    with pytest.raises(PathError):
        inside.wait(inside.guest.files.upload(archive(*entries), "/work/into"))
    assert inside.run("ls /tmp/out /work/out 2>/dev/null").text == ""


def test_setuid_bits_of_an_archive_are_dropped(inside: Inside) -> None:
    inside.wait(inside.guest.files.upload(archive(entry("program", mode=0o6755)), "/work/into"))
    assert inside.wait(inside.guest.files.stat("/work/into/program")).mode == 0o755


def test_names_with_newlines_and_bad_utf8_are_listed_and_removed(inside: Inside) -> None:
    inside.run("mkdir /work/odd; touch \"/work/odd/a\nb\" \"$(printf '/work/odd/\\377')\" '/work/odd/-rf'")
    assert len(inside.wait(inside.guest.files.list("/work/odd"))) == 3
    inside.wait(inside.guest.files.remove("/work/odd", recursive=True))
    assert inside.run("ls /work").text == "hostile\n"


def test_removing_a_link_leaves_its_target(inside: Inside) -> None:
    inside.run("mkdir /work/kept /work/gone; touch /work/kept/file; ln -s /work/kept /work/gone/link")
    inside.wait(inside.guest.files.remove("/work/gone", recursive=True))
    assert inside.run("ls /work/kept").text == "file\n"


def test_a_path_exchanged_while_it_is_written_leads_nowhere_else(inside: Inside, secret: Path) -> None:
    swap = f"while :; do ln -sfn {secret} /work/swap; rm -f /work/swap; echo y >/work/swap; rm -f /work/swap; done"

    async def race() -> None:
        await inside.guest.start("swap", Command(shell=swap, timeout_s=20))
        for _ in range(20):
            with contextlib.suppress(PathError):
                await inside.guest.files.write("/work/swap", b"changed", atomic=False)
        await inside.guest.forget("swap")

    inside.wait(race())
    assert secret.read_text() == "of the host"
