"""The images and layers of one host, in one folder, shared by every process of the machine.

    layers/<digits>/   one layer each (layer.py)       names/<quoted name>   an image's id
    images/<digits>    one image each (image.py)       owners/, held/        who uses what (holders.py)
    mounts/<digits>/   where an EROFS layer is mounted while somebody uses it
    derived/           what is made of layers and can be made again: disks, initramfs archives
    incoming/          layers in the making

Two locks order everything: `store.lock`, held shared by whoever adds and alone by `collect`, and `holders.lock`, held
for the moment in which a holder, or the mounts, change. The calls block for milliseconds (adding: for as long as the
content takes): from a coroutine, use `asyncio.to_thread`.
"""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote
from uuid import uuid4

from benthic.errors import shown
from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.entry import Entry, Listing, digest_of, size_of
from benthic.sandbox.images.holders import Holders
from benthic.sandbox.images.image import Image, ImageConfig, check_digest, full_name
from benthic.sandbox.images.layer import (
    BLOB,
    EROFS,
    TREE,
    Layer,
    LayerFormat,
    LayerKind,
    can_pack,
    differences,
    pack,
    read_entries,
    read_record,
    sync,
    write_entries,
    write_record,
)
from benthic.sandbox.images.mounts import mount_erofs, unmount
from benthic.sandbox.images.writer import DEFAULT, Policy, TreeWriter, remove_tree

READER = "reader-"
SNAPSHOT = "snapshot-"
"""Owners so named keep layers and use no tree: they keep nothing mounted."""
"""Holders of this name live no longer than a block of `opened`."""
FOLDERS = ("layers", "images", "names", "mounts", "derived", "incoming")


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image under one of its names."""

    name: str
    image: Image


class Store:
    """See the module. Laws: a layer's folder is whole; what a holder or a named image lists is there."""

    def __init__(self, root: Path, *, format: Literal["auto", "erofs", "folder"] = "auto") -> None:
        """Opens or makes a store.

        Args:
            root: its folder; best on a file system with direct reads (ext4, xfs), and not on one that sandboxes fill.
            format: of new layers; `auto` takes EROFS where this machine makes and this user mounts it.
        """
        self.root = root.absolute()
        for name in FOLDERS:
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self._holders = Holders(self.root)
        wants_erofs = format == "erofs" or (format == "auto" and can_pack() and os.geteuid() == 0)
        self._format: LayerFormat = "erofs" if wants_erofs else "folder"

    def image(self, reference: str) -> Image:
        """The image of a name (`python:3.11`, `tiny`) or an id.

        Raises:
            ImageError: there is none; the message lists what there is.
        """
        if reference.startswith("sha256:"):
            check_digest(reference)
            path = self.root / "images" / reference.removeprefix("sha256:")
        else:
            link = self._name(full_name(reference))
            path = self.root / "images" / link.read_text() if link.exists() else link
        if not path.exists():
            names = ", ".join(named.name for named in self.images()) or "nothing yet"
            raise ImageError(f"there is no image {shown(reference)} in {self.root}; it holds {names}")
        return Image.decode(path.read_bytes())

    def has_image(self, name: str) -> bool:
        """Whether a name has an image."""
        return self._name(full_name(name)).exists()

    def images(self) -> list[NamedImage]:
        """Every name and its image, by name."""
        names = sorted(unquote(path.name) for path in (self.root / "names").iterdir() if path.name[0] != ".")
        return [NamedImage(name, self.image(name)) for name in names]

    def add_image(self, layers: Sequence[str], config: ImageConfig | None = None, *, name: str) -> Image:
        """Names layers of this store, lowest first, as an image; the name may have had another image before."""
        image = Image(layers=tuple(layers), config=config or ImageConfig())
        with self.adding():
            for digest in image.layers:
                self.layer(digest)
            self._write("images", image.id.removeprefix("sha256:"), image.encode())
            self._write("names", quote(full_name(name), safe=""), image.id.removeprefix("sha256:").encode())
        return image

    def remove_name(self, name: str) -> None:
        """Forgets a name; `collect` then drops what nothing else uses.

        Raises:
            ImageError: there is no such name.
        """
        try:
            self._name(full_name(name)).unlink()
        except FileNotFoundError:
            raise ImageError(
                f"there is no image {shown(name)} to remove; `benthic sandbox image ls` lists the names"
            ) from None

    def layer(self, digest: str) -> Layer:
        """The record of a layer.

        Raises:
            ImageError: it is not here.
        """
        return read_record(self._layer(digest))

    def layers(self) -> list[Layer]:
        """Every layer of the store."""
        folders = sorted((self.root / "layers").iterdir())
        return [read_record(folder) for folder in folders if not folder.name.startswith(".")]

    def has_layer(self, digest: str) -> bool:
        """Whether a layer is here."""
        return self._layer(digest).exists()

    def entries(self, digest: str) -> Listing:
        """What a layer holds, with the hash of each file. A blob holds nothing that can be listed."""
        return read_entries(self._layer(digest))

    def add_layer(
        self,
        fill: Callable[[TreeWriter], None],
        *,
        kind: LayerKind,
        source: str,
        policy: Policy = DEFAULT,
        lower: Mapping[str, Entry] | None = None,
        is_compressed: bool = True,
    ) -> Layer:
        """Takes a layer in: `fill` writes its tree. The same content gives the layer that is already there.

        Args:
            lower: what lies below it, for folders that come without an entry of their own.
            is_compressed: by lz4, in EROFS files; plain ones are made faster.
        """
        with self.incoming() as folder:
            (folder / TREE).mkdir()
            writer = TreeWriter(folder / TREE, policy, lower)
            fill(writer)
            entries = writer.finish()
            write_entries(folder, entries)
            if self._format == "erofs":
                pack(folder, is_compressed=is_compressed)
            return self._settle(folder, digest_of(entries), kind, self._format, size_of(entries), len(entries), source)

    def add_blob(self, path: Path, digest: str, *, source: str) -> Layer:
        """Takes a file in, such as a disk or a memory, by moving it; on the store's file system that costs nothing.

        Args:
            digest: `sha256:` and the file's digits, which the caller has counted while it wrote the file.
        """
        check_digest(digest)
        with self.incoming() as folder:
            shutil.move(path, folder / BLOB)
            size = (folder / BLOB).stat().st_size
            return self._settle(folder, digest, "snapshot", "blob", size, 1, source)

    def blob(self, digest: str) -> Path:
        """Where a blob lies. Read it only, and hold it."""
        return self._layer(digest) / BLOB

    def check(self, digest: str) -> list[str]:
        """Reads a whole layer and says what of it is not as it was taken in; empty is sound."""
        if self.layer(digest).format == "blob":
            with open(self.blob(digest), "rb") as data:
                found = hashlib.file_digest(data, "sha256").hexdigest()
            return [] if f"sha256:{found}" == digest else [f"its bytes have the digest sha256:{found}"]
        with self.opened([digest]) as (tree,):
            return list(differences(self.entries(digest), tree, digest))

    def hold(self, owner: str, digests: Sequence[str]) -> None:
        """Keeps layers from being collected until the owner releases them, through any crash.

        Raises:
            ImageError: one is not here; then nothing is held.
        """
        with self._lock("holders.lock"):
            for digest in digests:
                self.layer(digest)
            self._holders.hold(owner, digests)

    def mount(self, owner: str, digests: Sequence[str]) -> tuple[Path, ...]:
        """Holds layers and gives the folder of each one's tree, in the order asked; the same for every owner.

        The trees are read-only: mounted without setuid and devices, or, of plain folders, by agreement. Setuid bits
        are never on disk. Whiteouts are devices 0/0 and `trusted.overlay.opaque`, as overlayfs has them.

        Raises:
            ImageError: a layer is not here, is a blob, or cannot be mounted; then nothing is held that was not.
        """
        with self._lock("holders.lock"):
            layers = [self.layer(digest) for digest in digests]
            held = self._holders.layers(owner)
            self._holders.hold(owner, digests)
            try:
                return tuple(self._mounted(layer) for layer in layers)
            except ImageError:
                self.release_alone(owner)
                self._holders.hold(owner, held)
                raise

    def release(self, owner: str) -> None:
        """Ends an owner's use; a layer that nobody uses any more is unmounted. May be called twice."""
        with self._lock("holders.lock"):
            self.release_alone(owner)

    def owners(self) -> list[str]:
        """Everybody who holds layers; what belongs to nobody alive is for the caller to release."""
        return self._holders.names()

    def held(self, owner: str) -> tuple[str, ...]:
        """What one owner holds."""
        return self._holders.layers(owner)

    def held_since_s(self, owner: str) -> float:
        """When an owner's layers last became more, as Unix time; now, if it holds none."""
        return self._holders.changed_s(owner)

    @contextmanager
    def opened(self, digests: Sequence[str]) -> Iterator[tuple[Path, ...]]:
        """The trees of layers for as long as the block runs."""
        owner = f"{READER}{uuid4().hex[:12]}"
        with self.adding():
            try:
                yield self.mount(owner, digests)
            finally:
                self.release(owner)

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Keeps `collect` away while layers are taken in that no name or owner lists yet. May be nested."""
        with self._lock("store.lock", fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody adds, holds or releases while the block runs."""
        with self._lock("store.lock"), self._lock("holders.lock"):
            yield

    @contextmanager
    def _lock(self, name: str, how: int = fcntl.LOCK_EX) -> Iterator[None]:
        handle = os.open(self.root / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)

    @contextmanager
    def incoming(self) -> Iterator[Path]:
        """A folder that is removed in the end, or by `collect` after a crash: whoever works in it holds its lock."""
        folder = self.root / "incoming" / uuid4().hex
        with self.adding():
            folder.mkdir(mode=0o700)
            try:
                yield folder
            finally:
                remove_tree(folder)

    def _settle(
        self, folder: Path, digest: str, kind: LayerKind, format: LayerFormat, size: int, num_entries: int, source: str
    ) -> Layer:
        created_s = time.time()
        layer = Layer(
            digest=digest,
            kind=kind,
            format=format,
            size_bytes=size,
            num_entries=num_entries,
            created_s=created_s,
            source=source,
        )
        write_record(folder, layer)
        folder.chmod(0o755)
        with suppress(OSError):  # not empty: the same content is there already
            folder.rename(self._layer(digest))
        return self.layer(digest)

    def _mounted(self, layer: Layer) -> Path:
        folder = self._layer(layer.digest)
        if layer.format == "blob":
            raise ImageError(f"layer {layer.digest} is a blob and has no tree; `blob` gives its file")
        if layer.format == "folder":
            return folder / TREE
        target = self._mount_point(layer.digest)
        if not os.path.ismount(target):
            mount_erofs(folder / EROFS, target)
        return target

    def release_alone(self, owner: str) -> None:
        """The same for whoever has the store `alone`."""
        for digest in self._holders.layers(owner):  # what is held is forgotten last: who dies here, releases again
            others = (holder for holder in self._holders.holders(digest) if holder != owner)
            if all(holder.startswith(SNAPSHOT) for holder in others):
                self._unmounted(digest)
        self._holders.release(owner)

    def _unmounted(self, digest: str) -> None:
        target = self._mount_point(digest)
        unmount(target)
        with suppress(FileNotFoundError):
            target.rmdir()

    def _mount_point(self, digest: str) -> Path:
        """Short, since the paths of all layers of an overlay have to fit into one page."""
        return self.root / "mounts" / digest.removeprefix("sha256:")[:32]

    def _layer(self, digest: str) -> Path:
        check_digest(digest)
        return self.root / "layers" / digest.removeprefix("sha256:")

    def _name(self, name: str) -> Path:
        return self.root / "names" / quote(name, safe="")

    def _write(self, folder: str, name: str, data: bytes) -> None:
        staged = self.root / folder / f".{uuid4().hex}"
        staged.write_bytes(data)
        sync(staged)
        staged.replace(self.root / folder / name)
