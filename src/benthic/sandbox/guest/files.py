"""Files inside a sandbox: a short-lived process there does the work as the sandbox's user.

So no path of the sandbox is ever resolved on the host: a link to /etc/shadow leads to the sandbox's own.
"""

from collections.abc import AsyncIterable, AsyncIterator

from benthic.sandbox.guest.connection import Connection
from benthic.sandbox.records import MIB, FileStat


class Files:
    """The files of one sandbox; `Guest.files`. Paths are absolute.

    Every method raises PathError for what the file system refuses, and GuestLost when init is gone. `user` is "root" or
    None, as in a command. Writing calls take a `job` id: the same call sent twice then happens once, and stays in
    init's table until `Guest.forget`; without one they get a passing id.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

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
        raise NotImplementedError

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
        raise NotImplementedError

    async def list(self, path: str, *, max_entries: int = 100_000, user: str | None = None) -> list[FileStat]:
        """The entries of a folder, sorted by path; links are not followed."""
        raise NotImplementedError

    async def stat(self, path: str, *, user: str | None = None) -> FileStat:
        """One entry; a link is not followed."""
        raise NotImplementedError

    async def remove(
        self, path: str, *, recursive: bool = False, user: str | None = None, job: str | None = None
    ) -> None:
        """Removes a file, a link, an empty folder, or with `recursive` a folder and all below; never through links."""
        raise NotImplementedError

    async def make_folder(self, path: str, *, mode: int = 0o755, user: str | None = None) -> None:
        """Makes a folder and those above it; one that exists is fine."""
        raise NotImplementedError

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
        raise NotImplementedError

    def download(
        self, path: str, *, max_bytes: int = 100 * MIB, max_files: int = 100_000, user: str | None = None
    ) -> AsyncIterator[bytes]:
        """A file, or a folder with all below, as a tar archive in pieces; names start with the last part of `path`.

        Links stay links; sockets, FIFOs and devices are left out. A file that shrinks while read is padded with zeros.
        The archive is a guest's word: `unpack_archive` in `archives.py` takes it apart safely.
        """
        raise NotImplementedError
