"""A folder or a tar archive of named files, read the same way: where OCI layouts and `docker save` keep an image."""

import hashlib
import io
import tarfile
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, cast

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.entry import check_path

MAX_JSON_BYTES = 16 << 20


class Archive:
    """Opened with `with`; names are relative paths, and lead nowhere else."""

    def __init__(self, path: Path) -> None:
        """A folder, or a tar file, compressed or not.

        Raises:
            ImageError: it is neither.
        """
        self.path, self._stack = path, ExitStack()
        self._tar: tarfile.TarFile | None = None
        if path.is_dir():
            return
        try:
            self._tar = self._stack.enter_context(tarfile.TarFile.open(path, "r:*"))
        except FileNotFoundError:
            raise ImageError(f"there is no file {path}; give an OCI layout or what `docker save` wrote") from None
        except (tarfile.TarError, OSError, EOFError) as error:
            raise ImageError(f"{path} is neither a folder nor a tar archive: {error}") from None

    def __enter__(self) -> "Archive":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            self.open(name).close()
        except ImageError:
            return False
        return True

    def open(self, name: str) -> BinaryIO:
        """One file's bytes.

        Raises:
            ImageError: it is not there, or is no file of this archive.
        """
        check_path(name)
        if self._tar is None:
            path = self.path / name
            inside = path.resolve().is_relative_to(self.path.resolve())
            if not inside or not path.is_file():
                raise ImageError(f"{self.path} has no file {name!r} of its own; the image is not whole")
            return open(path, "rb")
        for candidate in (name, f"./{name}"):
            try:
                file = self._tar.extractfile(candidate)
            except (KeyError, RecursionError):
                continue
            except (tarfile.TarError, OSError, EOFError) as error:
                raise ImageError(f"{self.path} cannot be read at {name!r}: {error}; get it again") from None
            if file is not None:
                return cast(BinaryIO, file)
        raise ImageError(f"{self.path} has no file {name!r}; the image is not whole")

    def read(self, name: str) -> bytes:
        """A small file's bytes, whole."""
        with self.open(name) as file:
            data = file.read(MAX_JSON_BYTES + 1)
        if len(data) > MAX_JSON_BYTES:
            raise ImageError(
                f"{name!r} in {self.path} is larger than {MAX_JSON_BYTES} bytes; it should be a short text"
            )
        return data


class Checked(io.RawIOBase):
    """A stream that counts and hashes what passes, so that a digest is checked by the one read that uses the bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._sha256 = stream, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        piece = self._stream.read(len(buffer))
        buffer[: len(piece)] = piece
        self._sha256.update(piece)
        return len(piece)

    def digest(self) -> str:
        """Of everything, after reading what is left."""
        while self.read(1 << 20):
            pass
        return f"sha256:{self._sha256.hexdigest()}"

    def check(self, digest: str, name: str) -> None:
        """Reads what is left and compares.

        Raises:
            ImageError: the bytes are not those of the digest.
        """
        found = self.digest()
        if found != digest:
            raise ImageError(f"{name} has the digest {found} and should have {digest}; get the image again")


def blob_name(digest: str) -> str:
    """Where an OCI layout keeps a blob."""
    return str(PurePosixPath("blobs", *digest.split(":", 1)))
