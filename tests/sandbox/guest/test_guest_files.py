"""File calls through init: what is read, written, listed, removed, packed and unpacked, and what is refused."""

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator

import pytest

from benthic.sandbox.errors import CallRefused, PathError
from benthic.sandbox.guest import Guest
from benthic.sandbox.records import Command
from tests.sandbox.guest.plain_init import PlainInit, until

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")


@pytest.mark.parametrize("size", [0, 1, 65_536, 300_000, 3_000_001])
@pytest.mark.parametrize("atomic", [True, False])
def test_content_of_any_size_is_read_as_it_was_written(init: PlainInit, size: int, atomic: bool) -> None:
    async def story(guest: Guest) -> None:
        content, path = os.urandom(size), f"{init.work}/made/below/file"
        await guest.files.write(path, content, atomic=atomic)
        assert await guest.files.read(path) == content
        await guest.files.write(path, b"short", atomic=atomic)
        assert await guest.files.read(path) == b"short", "no tail of the old content"
        assert os.listdir(f"{init.work}/made/below") == ["file"]
        assert await guest.jobs() == []

    init.play(story)


def test_ranges_are_read_and_written_alone(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        path = f"{init.work}/file"
        await guest.files.write(path, b"0123456789")
        assert await guest.files.read(path, offset=3, limit=4) == b"3456"
        assert await guest.files.read(path, offset=8, limit=4) == b"89"
        assert await guest.files.read(path, offset=99) == b""
        await guest.files.write(path, b"xy", offset=2)
        assert await guest.files.read(path) == b"01xy456789"
        await guest.files.write(path, b"end", offset=12)
        assert await guest.files.read(path) == b"01xy456789\0\0end"

    init.play(story)


def test_modes_are_kept_set_and_stripped(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        path = f"{init.work}/file"
        for options, mode in [({}, 0o644), ({"mode": 0o755}, 0o755), ({}, 0o755), ({"mode": 0o4777}, 0o777)]:
            await guest.files.write(path, b"", **options)
            assert (await guest.files.stat(path)).mode == mode

    init.play(story)


def test_writing_through_a_link_changes_its_target_and_keeps_the_link(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.files.write(f"{init.work}/target", b"old")
        (init.work / "link").symlink_to("target")
        await guest.files.write(f"{init.work}/link", b"new")
        assert (init.work / "target").read_bytes() == b"new"
        assert (init.work / "link").is_symlink()

    init.play(story)


NAMES = ["a b", "new\nline", 'quote"\\', "umlaut-ä", "\udcff\udcfe", "x" * 255, "-rf", "\x01\x7f", "snow ☃ 𝄞"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_any_bytes_come_back_as_they_are(init: PlainInit, name: str) -> None:
    async def story(guest: Guest) -> None:
        path = f"{init.work}/{name}"
        await guest.files.write(path, b"x")
        assert os.listdir(os.fsencode(init.work)) == [os.fsencode(name)]
        assert [entry.path for entry in await guest.files.list(str(init.work))] == [path]
        archive = b"".join([piece async for piece in guest.files.download(path)])
        await guest.files.upload(archive, f"{init.work}/again")
        assert await guest.files.read(f"{init.work}/again/{name}") == b"x"
        await guest.files.remove(path)
        assert os.listdir(init.work) == ["again"]

    init.play(story)


def test_entries_tell_type_size_time_and_target(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        (init.work / "file").write_bytes(b"123")
        os.utime(init.work / "file", (1, 2.5))
        (init.work / "folder").mkdir(mode=0o750)
        (init.work / "link").symlink_to("/etc/shadow")
        os.mkfifo(init.work / "fifo")
        entries = {entry.path.rpartition("/")[2]: entry for entry in await guest.files.list(str(init.work))}
        assert {name: entry.type for name, entry in entries.items()} == {
            "fifo": "other",
            "file": "file",
            "folder": "folder",
            "link": "link",
        }
        assert (entries["file"].size_bytes, entries["file"].modified_s) == (3, 2.5)
        assert entries["folder"].mode == 0o750
        assert entries["link"].target == "/etc/shadow"
        assert (await guest.files.stat(f"{init.work}/link")).type == "link"

    init.play(story)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("fifo", "not a regular file"),
        ("folder", "Is a directory"),
        ("missing", "No such file"),
        ("/dev/zero", "not a regular file"),
        ("loop", "Too many levels of symbolic links"),
        ("file/below", "Not a directory"),
    ],
)
def test_what_is_no_file_is_refused_and_blocks_nothing(init: PlainInit, name: str, part: str) -> None:
    async def story(guest: Guest) -> None:
        os.mkfifo(init.work / "fifo", 0o666)
        (init.work / "folder").mkdir()
        (init.work / "file").touch()
        (init.work / "loop").symlink_to("loop")
        with pytest.raises(PathError, match=part):
            await guest.files.read(os.path.join(init.work, name))
        if name not in ("missing", "loop", "file/below"):
            with pytest.raises(PathError):
                await guest.files.write(os.path.join(init.work, name), b"x")

    init.play(story)


def test_a_file_without_end_is_read_up_to_what_is_allowed(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        (init.work / "sparse").touch()
        os.truncate(init.work / "sparse", 1 << 40)
        with pytest.raises(PathError, match="more than the 100000 bytes"):
            await guest.files.read(f"{init.work}/sparse", max_bytes=100_000)
        assert await guest.files.read(f"{init.work}/sparse", limit=10) == bytes(10)
        assert len(await guest.files.read("/proc/self/status")) > 100
        with pytest.raises(PathError, match="more than was allowed"):
            _ = [piece async for piece in guest.files.download(f"{init.work}/sparse", max_bytes=1000)]

    init.play(story)


@needs_root
def test_the_user_inside_may_no_more_than_the_user(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        (init.folder / "secret").write_text("x")
        (init.folder / "secret").chmod(0o600)
        (init.work / "link").symlink_to(init.folder / "secret")
        for path in (f"{init.folder}/secret", f"{init.work}/link"):
            with pytest.raises(PathError, match="Permission denied"):
                await guest.files.read(path)
            assert await guest.files.read(path, user="root") == b"x", "whose files they are, root inside may read"
        with pytest.raises(PathError, match="Permission denied"):
            await guest.files.write(f"{init.folder}/new", b"x")
        await guest.files.write(f"{init.work}/mine", b"x")
        assert (init.work / "mine").stat().st_uid == init.uid

    init.play(story)


def test_removing_never_follows_a_link(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        for name in ("kept/file", "gone/deep/er/file"):
            await guest.files.write(f"{init.work}/{name}", b"x")
        (init.work / "gone" / "link").symlink_to("../kept")
        with pytest.raises(PathError, match="not empty"):
            await guest.files.remove(f"{init.work}/gone")
        await guest.files.remove(f"{init.work}/gone", recursive=True)
        (init.work / "link").symlink_to("kept")
        await guest.files.remove(f"{init.work}/link", recursive=True)
        assert sorted(os.listdir(init.work)) == ["kept"]
        assert (init.work / "kept" / "file").exists()

    init.play(story)


def test_a_call_with_an_id_is_made_once(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        path = f"{init.work}/file"
        await guest.files.write(path, b"first", job="s3")
        await guest.files.write(path, b"second", job="s3")
        assert await guest.files.read(path) == b"first"
        await guest.files.remove(path, job="s4")
        await guest.files.remove(path, job="s4")
        await guest.forget("s4")
        with pytest.raises(PathError, match="No such file"):
            await guest.files.remove(path, job="s4")

    init.play(story)


def test_a_write_that_fails_leaves_nothing_half_made(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        async def never_ending() -> AsyncIterator[bytes]:
            yield b"x" * 100_000
            await asyncio.sleep(60)

        await guest.files.write(f"{init.work}/file", b"old")
        guest.files._start(["write", f"{init.work}/file", "-1", "9", "atomic"], b"x", None, "a", input_ends=False)
        await until(lambda: len(os.listdir(init.work)) == 2)
        await guest.forget("a")
        await until(lambda: os.listdir(init.work) == ["file"])
        assert await guest.files.read(f"{init.work}/file") == b"old"

    init.play(story)


def test_a_full_table_of_jobs_is_told_as_such(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        for number in range(256):
            await guest.start(f"j{number}", Command(argv=("true",)))
        with pytest.raises(CallRefused, match="forget some"):
            await guest.files.read("/etc/passwd")
        with pytest.raises(CallRefused, match="forget some"):
            await guest.files.write(f"{init.work}/file", b"x")

    init.play(story)


# ---- archives ----


def archive_of(*members: tuple[str, dict[str, object], bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, fields, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


LONG = "/".join(["long" * 20] * 10)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_archives_of_every_form_are_unpacked(init: PlainInit, form: int) -> None:
    deep = LONG if form != tarfile.USTAR_FORMAT else "l" * 90 + "/" + "m" * 90
    archive = archive_of(
        ("./folder", {"type": tarfile.DIRTYPE, "mode": 0o555}, b""),
        ("folder/file", {"mode": 0o6751, "mtime": 1000}, b"x" * 70_000),
        (deep, {}, b"deep"),
        ("link", {"type": tarfile.SYMTYPE, "linkname": "folder/file"}, b""),
        ("hard", {"type": tarfile.LNKTYPE, "linkname": "./folder/file"}, b""),
        form=form,
    )

    async def story(guest: Guest) -> None:
        await guest.files.upload(archive, f"{init.work}/in")
        folder = init.work / "in"
        assert (folder / "folder" / "file").read_bytes() == b"x" * 70_000
        assert (folder / "folder" / "file").stat().st_mode & 0o7777 == 0o751
        assert (folder / "folder" / "file").stat().st_mtime == 1000
        assert (folder / deep).read_bytes() == b"deep"
        assert os.readlink(folder / "link") == "folder/file"
        assert (folder / "hard").samefile(folder / "folder" / "file")

    init.play(story)


EVIL = {
    "absolute": (("/abs", {}, b"x"),),
    "dots": (("a/../../x", {}, b"x"),),
    "through a link": (("l", {"type": tarfile.SYMTYPE, "linkname": ".."}, b""), ("l/x", {}, b"x")),
    "hard link out": (("h", {"type": tarfile.LNKTYPE, "linkname": "../target"}, b""),),
    "hard link through a link": (
        ("l", {"type": tarfile.SYMTYPE, "linkname": ".."}, b""),
        ("h", {"type": tarfile.LNKTYPE, "linkname": "l/target"}, b""),
    ),
    "device": (("d", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5}, b""),),
    "fifo": (("f", {"type": tarfile.FIFOTYPE}, b""),),
    "no name": (("", {}, b"x"),),
    "too many": tuple((f"f{number}", {}, b"") for number in range(101)),
    "too large": (("f", {}, b"x" * 1_000_001),),
}


@pytest.mark.parametrize("case", EVIL)
def test_archives_that_lead_out_or_hold_more_than_allowed_are_refused(init: PlainInit, case: str) -> None:
    async def story(guest: Guest) -> None:
        (init.work / "target").write_text("old")
        with pytest.raises(PathError):
            await guest.files.upload(archive_of(*EVIL[case]), f"{init.work}/in", max_bytes=1_000_000, max_files=100)
        assert sorted(os.listdir(init.work)) == ["in", "target"]
        assert (init.work / "target").read_text() == "old"
        assert (init.work / "target").stat().st_nlink == 1

    init.play(story)


def test_an_archive_that_lies_in_wait_under_a_linked_name_replaces_the_link(init: PlainInit) -> None:
    archive = archive_of(("l", {"type": tarfile.SYMTYPE, "linkname": "../target"}, b""), ("l", {}, b"new"))

    async def story(guest: Guest) -> None:
        (init.work / "target").write_text("old")
        await guest.files.upload(archive, f"{init.work}/in")
        assert (init.work / "target").read_text() == "old"
        assert (init.work / "in" / "l").read_text() == "new"

    init.play(story)


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "checksum", "pax"])
def test_damaged_archives_are_refused(init: PlainInit, damage: str) -> None:
    whole = archive_of((LONG, {}, b"x" * 2000))
    damaged = {
        "cut": whole[:1800],
        "empty": b"",
        "noise": os.urandom(5000),
        "checksum": bytes([whole[0] ^ 1]) + whole[1:],
        "pax": whole.replace(b" path=", b"9path="),
    }[damage]

    async def story(guest: Guest) -> None:
        with pytest.raises(PathError):
            await guest.files.upload(damaged, f"{init.work}/in")

    init.play(story)


def names_of(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def test_a_stream_of_pieces_is_unpacked_and_a_packed_folder_is_the_same_again(init: PlainInit) -> None:
    source = init.work / "source"
    (source / "empty").mkdir(parents=True)
    (source / LONG).parent.mkdir(parents=True)
    (source / LONG).write_bytes(b"deep")
    (source / "big").write_bytes(os.urandom(2_000_000))
    (source / "link").symlink_to("../" * 40 + "etc/shadow")
    os.mkfifo(source / "fifo")

    async def story(guest: Guest) -> None:
        first = b"".join([piece async for piece in guest.files.download(str(source))])

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(first), 100_001):
                yield first[start : start + 100_001]

        await guest.files.upload(pieces(), f"{init.work}/copy")
        second = b"".join([piece async for piece in guest.files.download(f"{init.work}/copy/source")])
        assert names_of(first) == names_of(second)
        assert "source/empty" in names_of(first)
        assert "source/fifo" not in names_of(first)
        assert (init.work / "copy/source/big").read_bytes() == (source / "big").read_bytes()
        assert os.readlink(init.work / "copy/source/link") == os.readlink(source / "link")
        assert (init.work / "copy/source" / LONG).read_bytes() == b"deep"

    init.play(story)


def test_a_download_that_is_left_early_frees_its_job(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.files.write(f"{init.work}/big", bytes(3_000_000))
        pieces = guest.files.download(f"{init.work}/big")
        async for _ in pieces:
            break
        await pieces.aclose()  # type: ignore[attr-defined]
        assert await guest.jobs() == []

    init.play(story)
