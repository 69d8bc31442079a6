"""Folders of this machine as tar archives, and back: an archive that comes out of a sandbox is not to be trusted."""

import errno
import io
import os
import tarfile
from pathlib import Path, PurePosixPath

from benthic.sandbox.errors import PathError
from benthic.sandbox.records import Limits

_MAX_NAME_BYTES = 2048
_ITS_DOING = (errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ENOTEMPTY)
"""What an archive brings about, and no disk of this machine."""


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
                _refuse_links(folder, member)
                opened.extract(member, folder, filter="data")
    except tarfile.TarError as error:
        raise PathError(str(folder), f"the archive was refused: {error}") from error
    except OSError as error:
        if error.errno not in _ITS_DOING:
            raise
        raise PathError(str(folder), f"the archive was refused: {error}") from error


def _refuse_links(folder: Path, member: tarfile.TarInfo) -> None:
    """No entry is written through a link, of this archive or of an earlier one.

    The filter of tarfile alone looks where links lead, and before Python 3.11.13 long chains of them deceived it.
    """
    names = [member.name, *([member.linkname] if member.islnk() else [])]
    for name in names:
        if len(os.fsencode(name)) > _MAX_NAME_BYTES:
            raise PathError(name[:80], f"a name is longer than {_MAX_NAME_BYTES} bytes")
        parts = PurePosixPath(name.strip("/")).parts
        for end in range(1, len(parts)):
            if folder.joinpath(*parts[:end]).is_symlink():
                raise PathError(name, f"{'/'.join(parts[:end])} is a link, and nothing is unpacked below one")
    if member.islnk() and folder.joinpath(member.linkname).is_symlink():
        raise PathError(member.name, f"it is another name of {member.linkname}, which is a link")
    target = folder.joinpath(member.name.strip("/"))
    if target.is_symlink():
        target.unlink()  # it is replaced, and not followed


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
