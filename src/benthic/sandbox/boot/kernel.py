"""The Linux kernel of virtual machines: Debian's cloud kernel, taken from its package, never installed.

    kernels/<release>/vmlinux     unpacked, so that an emulated processor need not do it at each boot; else vmlinuz
                      modules/    the few drivers of virtual hardware and file systems, in loading order

`find_kernel` looks where `fetch_kernel` puts it, then at what is installed on this machine. Nothing is downloaded
unless `fetch_kernel` is called: `python -m benthic.sandbox.boot` does that.
"""

import os
import platform
import re
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benthic.sandbox.boot.modules import in_loading_order, module_bytes, module_name
from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest.build import cache_folder

METAPACKAGES = ("linux-image-cloud-amd64", "linux-image-amd64")
"""Each depends on the newest kernel package of its flavour; the first is half the size."""
HOW_TO_GET = "run `python -m benthic.sandbox.boot` on a Debian machine: it downloads linux-image-cloud-amd64 (26 MB)"
_LZ4_MAGIC = b"\x02\x21\x4c\x18"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that QEMU can start."""

    release: str
    image: Path
    modules: tuple[Path, ...]
    """In the order in which they must be loaded."""

    def chosen(self, wanted: tuple[str, ...]) -> list[Path]:
        """Those of the modules that these need, themselves included."""
        return in_loading_order(self.modules, wanted)


def find_kernel(folder: Path | None = None) -> Kernel:
    """The newest kernel there is.

    Args:
        folder: where kernels are kept; None is `kernels` in the user's cache folder.

    Raises:
        NotSupported: there is none; the message says how to get one.
    """
    if platform.machine() != "x86_64":
        raise NotSupported(f"virtual machines need an x86-64 processor, and this one is {platform.machine()}")
    folder = folder or cache_folder() / "kernels"
    kept = sorted((path for path in folder.glob("*") if (path / "modules").is_dir()), key=_version)
    if not kept:
        kept = [made for made in [_take_installed(folder)] if made]
    if not kept:
        raise NotSupported(f"there is no kernel for virtual machines in {folder} or /boot; {HOW_TO_GET}")
    return _kernel(kept[-1])


def fetch_kernel(folder: Path | None = None) -> Kernel:
    """Downloads the kernel's package with apt-get, unpacks what is needed, and returns it.

    Raises:
        NotSupported: apt-get is not here, or has no such package; the message has its words.
    """
    folder = folder or cache_folder() / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as work:
        _apt("download", _package_name(), cwd=Path(work))
        (package,) = Path(work).glob("*.deb")
        unpacked = _run("dpkg-deb", "-x", str(package), work)
        if unpacked.returncode:
            raise NotSupported(f"dpkg-deb cannot unpack {package.name}: {unpacked.stderr.strip()[-500:]}")
        root = Path(work)
        (image,) = (root / "boot").glob("vmlinuz-*")
        trees = [path for path in (root / "lib", root / "usr/lib") if path.is_dir()]
        return _kernel(_keep(folder, image, trees[0] / "modules"))


def _package_name() -> str:
    for name in METAPACKAGES:
        found = re.search(r"Depends: (linux-image-\S+)", _run("apt-cache", "depends", "--important", name).stdout)
        if found:
            return found.group(1)
    names = " and ".join(METAPACKAGES)
    raise NotSupported(f"apt-cache knows neither of {names}; run apt-get update, or take a Debian machine")


def _apt(*arguments: str, cwd: Path) -> None:
    done = _run("apt-get", "-q", "-o", "APT::Sandbox::User=root", *arguments, cwd=cwd)
    if done.returncode:
        raise NotSupported(f"apt-get {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}")


def _run(*command: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotSupported(f"there is no {command[0]} on this machine; {HOW_TO_GET}") from None


def _take_installed(folder: Path) -> Path | None:
    """The newest kernel of /boot that this user may read and whose modules are there, copied; or None."""
    for image in sorted(Path("/boot").glob("vmlinuz-*"), key=_version, reverse=True):
        release = image.name.removeprefix("vmlinuz-")
        if os.access(image, os.R_OK) and (Path("/lib/modules") / release / "kernel").is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            return _keep(folder, image, Path("/lib/modules"))
    return None


def _keep(folder: Path, image: Path, modules_of_releases: Path) -> Path:
    """Puts a kernel into place whole, or leaves the one that is there."""
    release = image.name.removeprefix("vmlinuz-")
    target = folder / release
    with tempfile.TemporaryDirectory(dir=folder, prefix=".incoming-") as work:
        made = Path(work) / release
        (made / "modules").mkdir(parents=True)
        files = sorted((modules_of_releases / release / "kernel").rglob("*.ko*"))
        for index, module in enumerate(in_loading_order(files)):
            (made / "modules" / f"{index:02d}-{module_name(module)}.ko").write_bytes(module_bytes(module))
        _unpack(image, made)
        made.chmod(0o755)
        if not target.exists():
            made.rename(target)
    return target


def _unpack(image: Path, folder: Path) -> None:
    """Writes `vmlinux` if its packing is lz4 and that tool is here, else a copy of the packed image."""
    data = image.read_bytes()
    setup_sectors = data[0x1F1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)  # payload_offset, payload_length of the boot protocol
    payload = data[(setup_sectors + 1) * 512 + offset :][:length]
    if payload.startswith(_LZ4_MAGIC) and shutil.which("lz4"):
        # The last four bytes are the unpacked size, which is no part of the lz4 stream.
        done = subprocess.run(["lz4", "-d", "-c"], input=payload[:-4], capture_output=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(b"\x7fELF"):
            (folder / "vmlinux").write_bytes(done.stdout)
            return
    shutil.copy(image, folder / "vmlinuz")


def _kernel(folder: Path) -> Kernel:
    images = [path for name in ("vmlinux", "vmlinuz") if (path := folder / name).exists()]
    if not images:
        raise StartFailed(f"{folder} holds no kernel image; remove the folder, and {HOW_TO_GET}", stage="kernel")
    return Kernel(folder.name, images[0], tuple(sorted((folder / "modules").iterdir())))


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path.name)]
