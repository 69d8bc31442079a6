"""Archives that come out of sandboxes are unpacked within a folder or not at all."""

import io
import tarfile
from pathlib import Path

import pytest

from benthic.sandbox import Limits, PathError
from benthic.sandbox.archives import pack, unpack

LIMITS = Limits(num_files=100, upload_bytes=1 << 20)
Entry = tuple[str, bytes, str]


def archive(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for name, kind, rest in entries:
            member = tarfile.TarInfo(name)
            member.type, member.mode = kind, 0o755
            data = rest.encode() if kind == tarfile.REGTYPE else b""
            member.size, member.linkname = len(data), "" if data else rest
            opened.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "entries",
    [
        [("l", LINK, "a"), ("l/b", FILE, "x")],
        [("a", FOLDER, ""), ("l", LINK, "a"), ("l/b", FILE, "x")],
        [("a", FOLDER, ""), ("a/f", FILE, "x"), ("l", LINK, "a"), ("h", HARD, "l/f")],
        [("a", FILE, "x"), ("l", LINK, "a"), ("h", HARD, "l")],
        [("l", LINK, "l"), ("l/b", FILE, "x")],
        [("a", FILE, "x"), ("a/b", FILE, "x")],
        [("a/" * 3000 + "b", FILE, "x")],
        [("a" * 300, FILE, "x")],
        [("../b", FILE, "x")],
        [("l", LINK, "/etc")],
        [("f", tarfile.FIFOTYPE, "")],
    ],
)
def test_an_archive_that_goes_through_links_or_out_is_refused_in_words(tmp_path: Path, entries: list[Entry]) -> None:
    with pytest.raises(PathError):
        unpack(archive(*entries), tmp_path / "in", LIMITS)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_link_that_an_earlier_archive_left_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "in/l").symlink_to(tmp_path / "outside")
    unpack(archive(("l", FILE, "x")), tmp_path / "in", LIMITS)
    assert (tmp_path / "in/l").read_text() == "x"
    assert (tmp_path / "outside").read_text() == "kept"
    (tmp_path / "in/d").symlink_to(tmp_path)
    with pytest.raises(PathError, match="d is a link"):
        unpack(archive(("d/outside", FILE, "x")), tmp_path / "in", LIMITS)
    assert (tmp_path / "outside").read_text() == "kept"


def test_what_was_packed_comes_back(tmp_path: Path) -> None:
    (tmp_path / "work/a").mkdir(parents=True)
    (tmp_path / "work/a/file").write_text("x")
    (tmp_path / "work/link").symlink_to("a/file")
    for _ in range(2):
        unpack(pack(tmp_path / "work"), tmp_path / "out", LIMITS)
        assert (tmp_path / "out/work/link").read_text() == "x"
