"""Layers as tar archives: what images travel as. Whiteouts are files of special names there (`.wh.NAME`).

Reading trusts nothing: paths that climb or are absolute, entries below links, and devices end it. What lies below
`dev/` is left out, since each sandbox has a `/dev` of its own.
"""

import bz2
import gzip
import importlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from typing import BinaryIO, cast

from benthic.errors import shown
from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.contents import Content
from benthic.sandbox.images.entry import Entry, check_path
from benthic.sandbox.images.writer import TreeWriter

WHITEOUT, OPAQUE_NAME, META = ".wh.", ".wh..wh..opq", ".wh..wh."
MAX_HEADER_BYTES = 1 << 20
"""Of one extended header, which is held in memory."""
_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE)
_NS = 1_000_000_000


def read_tar(stream: BinaryIO, writer: TreeWriter) -> None:
    """Writes an archive's entries into a layer; the stream may be compressed (gzip, bzip2, xz, zstandard).

    Raises:
        ImageError: the archive is broken, or holds what no layer may.
    """
    try:
        with tarfile.open(fileobj=plain(stream), mode="r|", tarinfo=_BoundedHeader) as archive:
            for member in archive:
                _read_member(archive, member, writer)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the archive's
        raise ImageError(f"the archive cannot be read: {error}; get it again") from None


def write_tar(contents: Iterable[Content], out: BinaryIO) -> None:
    """Writes a layer as an archive that `read_tar` makes the same layer of.

    Raises:
        ImageError: a file has a name that means a whiteout in archives.
    """
    first: dict[str, str] = {}
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for content in contents:
            entry = content.entry
            if entry.type != "whiteout" and entry.path.rpartition("/")[2].startswith(WHITEOUT):
                raise ImageError(
                    f"{entry.path!r} cannot travel in an archive: names in `.wh.` stand for removals there"
                )
            member = _member(entry, first)
            if entry.type == "file" and member.isreg():
                with open(content.path, "rb") as data:
                    archive.addfile(member, data)
            else:
                archive.addfile(member)
            if entry.is_opaque:
                archive.addfile(tarfile.TarInfo(f"{entry.path}/{OPAQUE_NAME}"))


def plain(stream: BinaryIO) -> BinaryIO:
    """A stream without its compression, told by its first bytes.

    Raises:
        ImageError: it is compressed by zstandard, and that package is missing.
    """
    buffered = io.BufferedReader(cast(io.RawIOBase, stream)) if not hasattr(stream, "peek") else stream
    magic = cast(io.BufferedReader, buffered).peek(6)[:6]
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=buffered))
    if magic.startswith(b"BZh"):
        return cast(BinaryIO, bz2.BZ2File(buffered))
    if magic.startswith(b"\xfd7zXZ\x00"):
        return cast(BinaryIO, lzma.LZMAFile(buffered))
    if magic.startswith(b"\x28\xb5\x2f\xfd"):
        return _zstandard(buffered)
    return buffered


class _BoundedHeader(tarfile.TarInfo):
    """Refuses extended headers so large that reading one would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> "_BoundedHeader":
        """Reads one block."""
        header = super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        if header.size < 0 or (header.type in _HEADERS and header.size > MAX_HEADER_BYTES):
            raise ImageError(f"the archive has a header of {header.size} bytes; {MAX_HEADER_BYTES} are the most")
        return header


def _zstandard(stream: BinaryIO) -> BinaryIO:
    try:
        zstandard = importlib.import_module("zstandard")
    except ModuleNotFoundError:
        raise ImageError(
            "the archive is compressed by zstandard; `pip install zstandard`, or save it as gzip"
        ) from None
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(stream))


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo, writer: TreeWriter) -> None:
    path = _normal(member.name)
    if not path or path.startswith("dev/"):
        return
    check_path(path)
    folder, _, name = path.rpartition("/")
    if name.startswith(WHITEOUT):
        return _read_whiteout(folder, name, writer)
    entry = Entry(
        path=path,
        type="fifo",
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        modified_ns=_modified_ns(member),
    )
    if member.type in _FILES:
        writer.file(replace(entry, type="file", size=member.size), cast(BinaryIO, archive.extractfile(member)))
    elif member.isdir():
        writer.folder(replace(entry, type="folder"))
    elif member.issym():
        writer.other(replace(entry, type="link", mode=0o777, target=member.linkname))
    elif member.islnk():
        writer.hard_link(path, _normal(member.linkname))
    elif member.isfifo():
        writer.other(entry)
    else:
        what = "device" if member.ischr() or member.isblk() else f"entry of type {member.type!r}"
        raise ImageError(f"{shown(path)} is a {what}; a layer holds files, folders, links and FIFOs")


def _read_whiteout(folder: str, name: str, writer: TreeWriter) -> None:
    if name == OPAQUE_NAME:
        writer.mark_opaque(folder)
    elif not name.startswith(META):  # others were notes of a file system of old
        gone = "/".join(part for part in (folder, name.removeprefix(WHITEOUT)) if part)
        writer.hide(gone)


def _normal(name: str) -> str:
    """A member's name without `./` before it and `/` behind it; what it means otherwise is for `check_path`."""
    while name.startswith("./"):
        name = name[2:].lstrip("/")
    name = name.rstrip("/") if name != "/" else name
    return "" if name == "." else name


def _modified_ns(member: tarfile.TarInfo) -> int:
    """Extended headers give decimals, of which a float would lose some."""
    text = member.pax_headers.get("mtime", "")
    whole, _, part = text.partition(".")
    if whole.lstrip("-").isdecimal() and not whole.startswith("-") and part.isdecimal():
        return int(whole) * _NS + int(part[:9].ljust(9, "0"))
    return max(0, round(member.mtime * _NS))


def _member(entry: Entry, first: dict[str, str]) -> tarfile.TarInfo:
    folder, _, name = entry.path.rpartition("/")
    if entry.type == "whiteout":
        return tarfile.TarInfo("/".join(part for part in (folder, WHITEOUT + name) if part))
    member = tarfile.TarInfo(entry.path)
    member.mode, member.uid, member.gid = entry.mode, entry.uid, entry.gid
    member.mtime = entry.modified_ns // _NS
    if entry.modified_ns % _NS:
        member.pax_headers = {"mtime": f"{entry.modified_ns // _NS}.{entry.modified_ns % _NS:09d}"}
    if entry.type == "folder":
        member.type = tarfile.DIRTYPE
    elif entry.type == "link":
        member.type, member.linkname = tarfile.SYMTYPE, entry.target
    elif entry.type == "fifo":
        member.type = tarfile.FIFOTYPE
    elif entry.group in first:
        member.type, member.linkname = tarfile.LNKTYPE, first[entry.group]
    else:
        member.size = entry.size
        if entry.group is not None:
            first[entry.group] = entry.path
    return member
