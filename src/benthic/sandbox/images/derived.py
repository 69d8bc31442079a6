"""What is made of layers and can be made again: disks and boot archives of virtual machines, once a host.

derived/<digits of recipe and layers>/layers.json   what it is made of
                                      data          the file
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benthic.sandbox.images.layer import sync
from benthic.sandbox.images.store import Store

LAYERS, DATA = "layers.json", "data"


def derived(store: Store, recipe: str, digests: Sequence[str], make: Callable[[Path], None]) -> Path:
    """A file made of layers, made now if it is not there.

    Args:
        recipe: everything beside the layers that the file depends on, versions of programs inside included.
        digests: the layers; whoever holds all of them keeps the file too.
        make: writes the file to the path it is given.
    """
    key = hashlib.sha256(json.dumps([recipe, list(digests)]).encode()).hexdigest()
    place = store.root / "derived" / key
    if not place.exists():
        with store.incoming() as folder:
            make(folder / DATA)
            (folder / LAYERS).write_text(json.dumps(list(digests)))
            sync(folder / DATA)
            folder.chmod(0o755)
            with suppress(OSError):  # somebody else was faster
                folder.rename(place)
    return place / DATA


def layers_of(place: Path) -> list[str]:
    """The layers that a derived file is made of; it is a folder of `derived/`."""
    return list(json.loads((place / LAYERS).read_text()))
