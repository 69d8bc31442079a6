"""Drops what no name and no holder lists: layers, images without a name, disks made of them, and crashed work."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benthic.sandbox.images.derived import layers_of
from benthic.sandbox.images.store import READER, Store
from benthic.sandbox.images.writer import remove_tree

BLOCK_BYTES = 512
"""What `st_blocks` counts."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What went, or would go."""

    num_layers: int
    num_images: int
    size_bytes: int
    """Of the layers, unpacked."""
    num_derived: int = 0
    derived_bytes: int = 0
    """On disk."""
    released: tuple[str, ...] = ()
    """Holders that were in want of nothing any more."""


def collect(
    store: Store, *, is_done_with: Callable[[str], bool] = lambda owner: False, is_dry: bool = False
) -> Collected:
    """Removes everything unused. Waits until nobody is adding; sandboxes run on.

    Within the locks, things are only moved aside: they are gone for everybody in one step, however large they are.

    Args:
        is_done_with: whether a holder needs its layers no longer, and is released; asked within the locks.
        is_dry: finds out what would go, and changes nothing.
    """
    with store.alone():
        released = [owner for owner in store.owners() if owner.startswith(READER) or is_done_with(owner)]
        # A reader that lives would hold the lock.
        named = {entry.image.id.removeprefix("sha256:"): entry.image for entry in store.images()}
        live = {digest for image in named.values() for digest in image.layers}
        live |= {digest for owner in store.owners() if owner not in released for digest in store.held(owner)}
        dead = [layer for layer in store.layers() if layer.digest not in live]
        images = [path for path in (store.root / "images").iterdir() if path.name not in named]
        stale = list(_stale(store, live))
        collected = Collected(
            num_layers=len(dead),
            num_images=len(images),
            size_bytes=sum(layer.size_bytes for layer in dead),
            num_derived=len(stale),
            derived_bytes=sum(map(_disk_bytes, stale)),
            released=tuple(released),
        )
        if is_dry:
            return collected
        for owner in released:
            store.release_alone(owner)
        for path in (*images, *_drafts(store)):
            path.unlink()
        doomed = list((store.root / "incoming").iterdir())
        doomed += [_aside(store, store.root / "layers" / layer.hex) for layer in dead]
        doomed += [_aside(store, path) for path in stale]
    for path in doomed:
        with suppress(FileNotFoundError):  # another collection was here
            remove_tree(path)
    return collected


def _stale(store: Store, live: set[str]) -> Iterator[Path]:
    for path in (store.root / "derived").iterdir():
        if not set(layers_of(path)) <= live:
            yield path


def _drafts(store: Store) -> Iterator[Path]:
    """Files that somebody died over: whoever writes one holds a lock."""
    for name in ("names", "images", "owners"):
        yield from (path for path in (store.root / name).iterdir() if path.name.startswith("."))


def _disk_bytes(folder: Path) -> int:
    return sum(os.lstat(path).st_blocks * BLOCK_BYTES for path in folder.iterdir())


def _aside(store: Store, path: Path) -> Path:
    target = store.root / "incoming" / uuid4().hex
    path.rename(target)
    return target
