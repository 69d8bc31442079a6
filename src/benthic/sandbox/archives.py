"""Folders of this machine as tar archives, and back: an archive that comes out of a sandbox is not to be trusted."""

import io
import tarfile
from pathlib import Path

from benthic.sandbox.errors import PathError
from benthic.sandbox.records import Limits


def pack(path: Path) -> bytes:
    """A file or a folder with all below, under its own name, without owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(path, arcname=path.resolve().name, filter=_without_owner)
    return buffer.getvalue()


def unpack(archive: bytes, folder: Path, limits: Limits) -> None:
    """Unpacks into a folder, which is made if missing; regular files, folders and links that stay within it.

    Raises:
        PathError: an entry would leave the folder, is a device, or there are too many or too large ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    num_files, num_bytes = 0, 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
            for member in opened:
                num_files, num_bytes = num_files + 1, num_bytes + member.size
                if num_files > limits.num_files or num_bytes > limits.upload_bytes:
                    raise PathError(member.name, f"the archive holds more than {limits.num_files} files or its bytes")
                opened.extract(member, folder, filter="data")
    except tarfile.TarError as error:
        raise PathError(str(folder), f"the archive was refused: {error}") from error


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
