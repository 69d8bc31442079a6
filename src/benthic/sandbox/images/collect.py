"""Drops what no name and no holder lists: layers, images without a name, disks made of them, and crashed work."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benthic.sandbox.images.derived import layers_of
from benthic.sandbox.images.store import READER, Store
from benthic.sandbox.images.writer import remove_tree


@dataclass(frozen=True, slots=True)
class Collected:
    """What went."""

    num_layers: int
    num_images: int
    size_bytes: int
    """Of the layers, unpacked."""


def collect(store: Store) -> Collected:
    """Removes everything unused. Waits until nobody is adding; sandboxes run on.

    Within the locks, things are only moved aside: they are gone for everybody in one step, however large they are.
    """
    doomed: list[Path] = []
    with store.alone():
        for owner in store.owners():
            if owner.startswith(READER):  # a live one would hold the lock
                store.release_alone(owner)
        named = {entry.image.id.removeprefix("sha256:"): entry.image for entry in store.images()}
        live = {digest for image in named.values() for digest in image.layers}
        live |= {digest for owner in store.owners() for digest in store.held(owner)}
        dead = [layer for layer in store.layers() if layer.digest not in live]
        images = [path for path in (store.root / "images").iterdir() if path.name not in named]
        for path in images:
            path.unlink()
        doomed += list((store.root / "incoming").iterdir())
        doomed += [_aside(store, store.root / "layers" / layer.hex) for layer in dead]
        doomed += [_aside(store, path) for path in _stale(store, live)]
    for path in doomed:
        with suppress(FileNotFoundError):  # another collection was here
            remove_tree(path)
    return Collected(len(dead), len(images), sum(layer.size_bytes for layer in dead))


def _stale(store: Store, live: set[str]) -> Iterator[Path]:
    for path in (store.root / "derived").iterdir():
        if not set(layers_of(path)) <= live:
            yield path


def _aside(store: Store, path: Path) -> Path:
    target = store.root / "incoming" / uuid4().hex
    path.rename(target)
    return target
