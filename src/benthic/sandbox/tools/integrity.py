"""Whether an agent has changed what it had no business with: the programs and libraries of its sandbox.

Scoring never relies on it (it runs in a fresh sandbox); it is a signal of its own, so that a run in which agents learn
to replace /bin/bash is noticed on the first day.
"""

import hashlib

from benthic.sandbox.errors import PathError
from benthic.sandbox.sandbox import Sandbox

SYSTEM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/lib", "/usr/lib", "/etc")
HASHED = ("/bin/sh", "/bin/bash", "/usr/bin/env", "/etc/passwd", "/etc/ld.so.preload")
_HASHED_BYTES = 2 << 20

Fingerprint = dict[str, str]
"""What stands at each path, in a form that can be compared."""


async def fingerprint(sandbox: Sandbox) -> Fingerprint:
    """Entries of the system's folders with type, size, mode and time, and digests of a few that matter most."""
    found: Fingerprint = {}
    for folder in SYSTEM_FOLDERS:
        try:
            entries = await sandbox.list(folder)
        except PathError:
            continue
        for entry in entries:
            found[entry.path] = (
                f"{entry.type} {entry.size_bytes} {entry.mode:o} {entry.modified_s} {entry.target or ''}"
            )
    for path in HASHED:
        try:
            data = await sandbox.read(path, limit=_HASHED_BYTES)
        except PathError:
            continue
        found[f"{path} (content)"] = hashlib.sha256(data).hexdigest()
    return found


def changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """Paths that differ, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
