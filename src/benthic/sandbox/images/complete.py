"""What every sandbox counts on and an image from elsewhere may lack, added as one small layer on top.

Roots are read-only in some kinds, so that folders to mount on must be there; and commands run as `agent` (uid 1000)
in `/work`, whoever made the image.
"""

import io
from collections.abc import Mapping, Sequence

from benthic.sandbox.images.contents import Content, open_stack
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.tiny import USER, USER_ID
from benthic.sandbox.images.writer import Policy, TreeWriter

NEEDED = {
    "dev": Entry(path="dev", type="folder"),
    "etc": Entry(path="etc", type="folder"),
    "proc": Entry(path="proc", type="folder", mode=0o555),
    "root": Entry(path="root", type="folder", mode=0o700),
    "sys": Entry(path="sys", type="folder", mode=0o555),
    "tmp": Entry(path="tmp", type="folder", mode=0o1777),
    "work": Entry(path="work", type="folder", uid=USER_ID, gid=USER_ID),
}
ACCOUNTS = {
    "etc/passwd": f"{USER}:x:{USER_ID}:{USER_ID}:{USER}:/work:/bin/sh\n",
    "etc/group": f"{USER}:x:{USER_ID}:\n",
}
EMPTY = ("etc/hosts", "etc/resolv.conf")
MAX_ACCOUNTS_BYTES = 1 << 20


def completed(store: Store, layers: Sequence[str]) -> list[str]:
    """The layers, lowest first, with one more on top if something is missing."""
    with store.adding(), open_stack(store, layers) as contents:
        known = {content.entry.path: content for content in contents}
        missing = [entry for path, entry in NEEDED.items() if path not in known]
        files = {
            path: data for path, line in ACCOUNTS.items() if (data := _with_line(known.get(path), line)) is not None
        }
        files |= {path: b"" for path in EMPTY if path not in known}
        if not missing and not files:
            return list(layers)
        added = store.add_layer(
            lambda writer: _fill(writer, missing, files),
            kind="base",
            source="built in: folders and the user that every sandbox has",
            policy=Policy(modified_s=0),
            lower={path: content.entry for path, content in known.items()},
            is_compressed=False,
        )
    return [*layers, added.digest]


def _with_line(content: Content | None, line: str) -> bytes | None:
    """A file of accounts with the user's line, or None if it has that user or is no file that could take a line."""
    if content is None:
        return (
            f"root:x:0:0:root:/root:/bin/sh\n{line}".encode() if line.count(":") > 3 else f"root:x:0:\n{line}".encode()
        )
    if content.entry.type != "file" or content.entry.size > MAX_ACCOUNTS_BYTES:
        return None
    text = content.path.read_bytes()
    fields = [account.split(b":") for account in text.splitlines()]
    if any(len(account) > 2 and (account[0] == USER.encode() or account[2] == b"%d" % USER_ID) for account in fields):
        return None
    return text + (b"" if text.endswith(b"\n") or not text else b"\n") + line.encode()


def _fill(writer: TreeWriter, missing: Sequence[Entry], files: Mapping[str, bytes]) -> None:
    for entry in missing:
        writer.folder(entry)
    for path, data in files.items():
        writer.file(Entry(path=path, type="file", mode=0o644, size=len(data)), io.BytesIO(data))
