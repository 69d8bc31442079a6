"""The image that is always there: a static busybox and a small tree, made in well under a second, without a network."""

import io
import os
import shutil
import subprocess
from pathlib import Path

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.image import Image, ImageConfig
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.writer import Policy, TreeWriter

TINY = "tiny:latest"
USER, USER_ID = "agent", 1000
"""The ordinary user of every sandbox."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FOLDERS = ("bin", "dev", "etc", "home", "lib", "opt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "var", "work")
NESTED = ("usr/bin", "usr/lib", "usr/local", "usr/local/bin", "usr/sbin", "var/tmp", f"home/{USER}")
FILES = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{USER_ID}:{USER_ID}:{USER}:/work:/bin/sh\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": f"root:x:0:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/hostname": "sandbox\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
    "etc/resolv.conf": "",
    "etc/profile": f"export PATH={PATH}\n",
}
ELSEWHERE = {"env": "usr/bin", "id": "usr/bin", "test": "usr/bin", "[": "usr/bin", "timeout": "usr/bin"}
"""Programs that scripts look for under /usr/bin."""


def ensure_tiny(store: Store) -> Image:
    """The tiny image, made on first use.

    Raises:
        ImageError: there is no static busybox on this machine; the message names the package.
    """
    if store.has_image(TINY):
        return store.image(TINY)
    busybox = static_busybox()
    with store.adding():
        layer = store.add_layer(
            lambda writer: _fill(writer, busybox),
            kind="base",
            source=f"built in, from {busybox}",
            policy=Policy(modified_s=0),
            is_compressed=False,
        )
        config = ImageConfig(env=(("PATH", PATH),), cwd="/work", user=str(USER_ID), command=("/bin/sh",))
        return store.add_image([layer.digest], config, name=TINY)


def static_busybox() -> Path:
    """The static busybox of this machine.

    Raises:
        ImageError: there is none.
    """
    found = shutil.which("busybox", path=f"{os.environ.get('PATH', '')}:/bin:/usr/bin")
    if found is None:
        raise ImageError("there is no busybox on this machine; install the Debian package busybox-static")
    path = Path(found).resolve()
    head = path.read_bytes()[:4096]
    if not head.startswith(b"\x7fELF") or b"/ld-" in head:
        raise ImageError(f"{path} needs shared libraries; install the Debian package busybox-static")
    return path


def _fill(writer: TreeWriter, busybox: Path) -> None:
    for name in (*FOLDERS, *NESTED):
        writer.folder(Entry(path=name, type="folder", mode=0o755))
    for name in ("tmp", "var/tmp"):
        writer.folder(Entry(path=name, type="folder", mode=0o1777))
    for name in ("work", f"home/{USER}"):
        writer.folder(Entry(path=name, type="folder", mode=0o755, uid=USER_ID, gid=USER_ID))
    writer.folder(Entry(path="root", type="folder", mode=0o700))
    for path, text in FILES.items():
        writer.file(Entry(path=path, type="file", mode=0o644, size=len(text)), io.BytesIO(text.encode()))
    with open(busybox, "rb") as data:
        size = os.fstat(data.fileno()).st_size
        writer.file(Entry(path="bin/busybox", type="file", mode=0o755, size=size), data)
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in names:
        if name != "busybox":
            writer.other(Entry(path=f"bin/{name}", type="link", mode=0o777, target="/bin/busybox"))
        if name in ELSEWHERE:
            writer.other(Entry(path=f"{ELSEWHERE[name]}/{name}", type="link", mode=0o777, target="/bin/busybox"))
