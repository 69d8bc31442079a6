"""Files on every kind: what is written is read, what cannot be is an error with its path, and archives go both ways."""

import io
import tarfile
from pathlib import Path

import pytest

from benthic.sandbox import PathError, Sandbox
from tests.sandbox.conformance.conftest import Stand


def test_what_is_written_is_read_listed_and_removed(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        folder = f"{sandbox.spec.cwd}/files"
        await sandbox.write(f"{folder}/deep/a", b"0123456789", mode=0o640)
        assert await sandbox.read(f"{folder}/deep/a") == b"0123456789"
        assert await sandbox.read(f"{folder}/deep/a", offset=3, limit=4) == b"3456"
        await sandbox.write(f"{folder}/deep/a", b"AB", offset=4)
        assert await sandbox.read(f"{folder}/deep/a") == b"0123AB6789"
        stat = await sandbox.stat(f"{folder}/deep/a")
        assert (stat.type, stat.size_bytes, stat.mode) == ("file", 10, 0o640)
        await sandbox.exec(["ln", "-s", "/etc/passwd", f"{folder}/link"])
        assert [(e.path, e.type) for e in await sandbox.list(folder)] == [
            (f"{folder}/deep", "folder"),
            (f"{folder}/link", "link"),
        ]
        assert (await sandbox.stat(f"{folder}/link")).target == "/etc/passwd"
        await sandbox.remove(folder, recursive=True)
        with pytest.raises(PathError):
            await sandbox.stat(folder)

    stand.play(scene)


def test_a_shorter_content_leaves_no_tail(stand: Stand, sandbox: Sandbox) -> None:
    async def scene() -> None:
        path = f"{sandbox.spec.cwd}/tail"
        await sandbox.write(path, b"long content")
        await sandbox.write(path, b"short")
        assert await sandbox.read(path) == b"short"
        await sandbox.write(path, b"no", atomic=False)
        assert await sandbox.read(path) == b"no"

    stand.play(scene)


@pytest.mark.parametrize("kind", ["missing", "folder", "fifo"])
def test_what_is_no_file_is_an_error_that_names_it(stand: Stand, sandbox: Sandbox, kind: str) -> None:
    async def scene() -> None:
        path = f"{sandbox.spec.cwd}/not-{kind}"
        await sandbox.exec({"missing": "true", "folder": f"mkdir -p {path}", "fifo": f"mkfifo {path}"}[kind])
        with pytest.raises(PathError) as caught:
            await sandbox.read(path)
        assert caught.value.path == path and not caught.value.is_infra
        assert (await sandbox.exec("echo next")).text == "next\n"

    stand.play(scene)


def test_folders_go_in_and_come_out(stand: Stand, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "f").write_bytes(b"\0\xff" * 1000)
    (tmp_path / "tree" / "run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "tree" / "run").chmod(0o755)

    async def scene() -> None:
        target = f"{sandbox.spec.cwd}/in"
        await sandbox.upload(tmp_path / "tree", target)
        assert (await sandbox.exec([f"{target}/tree/run"])).text == "ran\n"
        await sandbox.exec("echo more > tree/more", cwd=target)
        await sandbox.download(f"{target}/tree", tmp_path / "out")
        assert (tmp_path / "out" / "tree" / "sub" / "f").read_bytes() == b"\0\xff" * 1000
        assert (tmp_path / "out" / "tree" / "more").read_text() == "more\n"

    stand.play(scene)


@pytest.mark.parametrize("name", ["../escape", "/absolute", "a/../../escape"])
def test_an_archive_that_leads_outside_is_refused(stand: Stand, sandbox: Sandbox, name: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.size = 4
        archive.addfile(member, io.BytesIO(b"evil"))

    async def scene() -> None:
        with pytest.raises(PathError):
            await sandbox.upload(buffer.getvalue(), f"{sandbox.spec.cwd}/box")
        assert (await sandbox.exec("ls /absolute ../escape escape 2>/dev/null | wc -l")).text.strip() == "0"

    stand.play(scene)
