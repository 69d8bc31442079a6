"""Files inside a sandbox: a short-lived process there does the work as the sandbox's user.

So no path of the sandbox is ever resolved on the host: a link to /etc/shadow leads to the sandbox's own.
"""

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

from benthic.sandbox.errors import GuestLost, PathError
from benthic.sandbox.guest.connection import UnknownJob
from benthic.sandbox.guest.frames import Frame
from benthic.sandbox.guest.job_calls import JobCalls
from benthic.sandbox.guest.jobs import FEED_BYTES, JobEnd, is_root, number_of
from benthic.sandbox.records import MIB, FileStat, Reason

QUIET_S = 60.0
"""A file call that moves nothing for so long is ended: its file system or its client is stuck."""
TYPES = ("file", "folder", "link", "other")
HEADERS_BYTES = 12 << 10
"""What an archive may hold beside the content of one file: headers, and names of the greatest length."""


class Files:
    """The files of one sandbox; `Guest.files`. Paths are absolute.

    Every method raises PathError for what the file system refuses, CallRefused when init has no room for another job,
    and GuestLost when init is gone. `user` is "root" or None, as in a command. Writing calls take a `job` id: the same
    call sent twice then happens once, and stays in init's table until `Guest.forget`; without one they pass.
    """

    def __init__(self, jobs: JobCalls) -> None:
        self._jobs = jobs

    async def read(
        self,
        path: str,
        *,
        offset: int = 0,
        limit: int | None = None,
        max_bytes: int = 100 * MIB,
        user: str | None = None,
    ) -> bytes:
        """A regular file's bytes from `offset`; links are followed, FIFOs and devices refused.

        Args:
            limit: stops quietly after so many bytes; None reads to the end.
            max_bytes: more than that is refused with PathError; files of /proc have no end.
        """
        allowed = max_bytes if limit is None else min(limit, max_bytes)
        asked = allowed + (limit is None or limit > max_bytes)  # one more shows that there is more
        content = bytearray()
        async with aclosing(self._stream(path, ["read", path, str(offset), str(asked)], user)) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > allowed:
                    raise PathError(path, f"has more than the {max_bytes} bytes that may be read at once")
        return bytes(content)

    async def write(
        self,
        path: str,
        data: bytes,
        *,
        mode: int | None = None,
        atomic: bool = True,
        offset: int | None = None,
        user: str | None = None,
        job: str | None = None,
    ) -> None:
        """Replaces a file's content, or some bytes of it; missing folders are made.

        Args:
            mode: permission bits; None keeps those of an existing file, else 0644. Set-user-id bits are dropped.
            atomic: through a new file and a rename: readers see the old or the new content.
            offset: writes there and leaves the rest as it is; never atomic.
        """
        how = str(offset) if offset is not None else "atomic" if atomic else "replace"
        argv = ["write", path, str(-1 if mode is None else mode), str(len(data)), how]
        await self._change(path, argv, data, user, job)

    async def list(self, path: str, *, max_entries: int = 100_000, user: str | None = None) -> list[FileStat]:
        """The entries of a folder, sorted by path; links are not followed."""
        lines = await self._lines(path, ["list", path, str(max_entries)], user)
        entries = [_entry_of(line, path) for line in lines]
        return sorted(entries, key=lambda entry: entry.path)

    async def stat(self, path: str, *, user: str | None = None) -> FileStat:
        """One entry; a link is not followed."""
        lines = await self._lines(path, ["stat", path], user)
        if len(lines) != 1:
            raise GuestLost(f"init told of {len(lines)} entries when asked about one")
        return _entry_of(lines[0], None)

    async def remove(
        self, path: str, *, recursive: bool = False, user: str | None = None, job: str | None = None
    ) -> None:
        """Removes a file, a link, an empty folder, or with `recursive` a folder and all below; never through links."""
        await self._change(path, ["remove", path, str(int(recursive))], b"", user, job)

    async def make_folder(self, path: str, *, mode: int = 0o755, user: str | None = None) -> None:
        """Makes a folder and those above it; one that exists is fine."""
        await self._change(path, ["make_folder", path, str(mode)], b"", user, None)

    async def upload(
        self,
        archive: bytes | AsyncIterable[bytes],
        folder: str,
        *,
        max_bytes: int = 100 * MIB,
        max_files: int = 100_000,
        user: str | None = None,
        job: str | None = None,
    ) -> None:
        """Unpacks a tar archive (ustar, pax or GNU; not compressed) into a folder, which is made if missing.

        Regular files, folders, links and hard links within the archive. Refused: absolute paths, '..', a path through a
        link, devices, FIFOs. Owners are ignored, set-user-id bits dropped.
        """
        await self._change(folder, ["unpack", folder, str(max_bytes), str(max_files)], archive, user, job)

    async def download(
        self, path: str, *, max_bytes: int = 100 * MIB, max_files: int = 100_000, user: str | None = None
    ) -> AsyncIterator[bytes]:
        """A file, or a folder with all below, as a tar archive in pieces; names start with the last part of `path`.

        Links stay links; sockets, FIFOs and devices are left out. A file that shrinks while read is padded with zeros.
        The archive is a guest's word: whoever unpacks it on a host must not trust its names.
        """
        most_bytes, seen_bytes = max_bytes + max_files * HEADERS_BYTES + MIB, 0
        argv = ["pack", path, str(max_bytes), str(max_files)]
        async with aclosing(self._stream(path, argv, user)) as pieces:
            async for piece in pieces:
                seen_bytes += len(piece)
                if seen_bytes > most_bytes:
                    raise GuestLost(f"init sends more of an archive than the {max_bytes} bytes that were allowed")
                yield piece

    def _start(
        self, argv: Sequence[str], data: bytes, user: str | None, job: str, **fields: Any
    ) -> asyncio.Future[Frame]:
        if not argv[1].startswith("/"):
            raise PathError(argv[1], "is no absolute path")
        return self._jobs.start(
            job,
            data,
            argv=[*argv],
            is_file_call=True,
            is_root=is_root(user),
            quiet_ms=int(QUIET_S * 1000),
            output_bytes=0,
            **fields,
        )

    async def _change(
        self, path: str, argv: Sequence[str], data: bytes | AsyncIterable[bytes], user: str | None, job: str | None
    ) -> None:
        """A call that takes input and gives none back."""
        passing = job or passing_id()
        try:
            first = data[:FEED_BYTES] if isinstance(data, bytes) else b""
            is_whole = isinstance(data, bytes) and len(data) <= FEED_BYTES
            start = self._start(argv, first, user, passing, input_ends=is_whole)
            asked = self._jobs.ask_end(passing)
            if not is_whole:
                await self._feed(passing, data, self._jobs.fed_bytes(passing, await start))
            await start  # a refusal says more than that the job is unknown
            _check_end(path, await self._jobs.end(asked, None))
        finally:
            if job is None:
                await self._jobs.forget(passing)

    async def _feed(self, job: str, data: bytes | AsyncIterable[bytes], fed_bytes: int) -> None:
        """Gives what init has not been given yet, perhaps by an earlier client."""
        if isinstance(data, bytes):
            await self._jobs.feed(job, data[fed_bytes:])
        else:
            async for piece in data:
                skipped_bytes = min(fed_bytes, len(piece))
                fed_bytes -= skipped_bytes
                if skipped_bytes < len(piece):
                    await self._jobs.feed(job, piece[skipped_bytes:])
        await self._jobs.feed(job, None)

    async def _stream(self, path: str, argv: Sequence[str], user: str | None) -> AsyncGenerator[bytes, None]:
        """A call that gives output and changes nothing."""
        job = passing_id()
        try:
            start = self._start(argv, b"", user, job, holds_output=True)
            asked = self._jobs.ask_end(job)
            async with aclosing(self._jobs.output(job)) as chunks:
                with suppress(UnknownJob):  # then it was refused
                    async for chunk in chunks:
                        yield chunk.data
            await start
            _check_end(path, await self._jobs.end(asked, None))
        finally:
            await self._jobs.forget(job)

    async def _lines(self, path: str, argv: Sequence[str], user: str | None) -> Sequence[dict[str, Any]]:
        text = b"".join([piece async for piece in self._stream(path, argv, user)])
        try:
            lines = [json.loads(line) for line in text.decode("utf-8", "surrogateescape").split("\n")[:-1]]
        except (ValueError, RecursionError) as error:
            raise GuestLost(f"init's list of files makes no sense: {error}") from None
        if not all(isinstance(line, dict) for line in lines):
            raise GuestLost("init's list of files makes no sense: it holds what is no object")
        return lines


def passing_id() -> str:
    """An id for a job that nobody will ask for again."""
    return f"passing-{secrets.token_hex(8)}"


def _check_end(path: str, end: JobEnd) -> None:
    if end.reason is Reason.EXITED and end.returncode == 0:
        return
    if end.failure:
        raise PathError(path, f"{end.failure}: {os.strerror(end.errno)}")
    if end.reason in (Reason.TIMEOUT, Reason.QUIET):
        raise PathError(path, f"nothing moved for {QUIET_S:.0f} s")
    raise PathError(path, "the call was ended from inside the sandbox")


def _entry_of(line: dict[str, Any], folder: str | None) -> FileStat:
    """One line, checked: a name must not lead out of its folder, on whatever machine it is used."""
    name, kind, target = line.get("name"), line.get("type"), line.get("target")
    if not isinstance(name, str) or not name or kind not in TYPES or not isinstance(target, str | None):
        raise GuestLost(f"init told of a file that makes no sense: {str(line)[:100]}")
    if folder is not None and ("/" in name or name in (".", "..")):
        raise GuestLost(f"init told of a file in {folder!r} by a name that no file has: {name[:100]!r}")
    return FileStat(
        path=name if folder is None else f"{folder.rstrip('/')}/{name}",
        type=kind,
        size_bytes=number_of(line, "size"),
        mode=number_of(line, "mode") & 0o7777,
        modified_s=number_of(line, "modified_ns", low=-(1 << 62)) / 1e9,
        target=target,
    )
