"""The layers that a sandbox stands on: its image's, and workspaces and toolkits beside it."""

from collections.abc import Callable, Mapping, Sequence

from benthic.sandbox.images.image import Image, full_name
from benthic.sandbox.images.python import PYTHON, ensure_python
from benthic.sandbox.images.stack import distinct
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.tiny import TINY, ensure_tiny

BUILT_IN: Mapping[str, Callable[[Store], Image]] = {TINY: ensure_tiny, PYTHON: ensure_python}
"""Images that are made on first use."""


def chosen_layers(store: Store, image: str | None, layers: Sequence[str] = ()) -> tuple[str, ...]:
    """Digests, lowest first, each once.

    Args:
        image: a name or an id; None is the tiny image. Those that are built in are made if they are not there.
        layers: digests of layers, or names of images, of which all but the base layers are taken.

    Raises:
        ImageError: the store has no such image or layer.
    """
    digests = list(_image(store, image or TINY).layers)
    for reference in layers:
        if reference.startswith("sha256:") and store.has_layer(reference):
            digests.append(reference)
        else:
            found = _image(store, reference).layers
            digests += [digest for digest in found if store.layer(digest).kind != "base"]
    return distinct(digests)


def _image(store: Store, reference: str) -> Image:
    ensure = None if reference.startswith("sha256:") else BUILT_IN.get(full_name(reference))
    return store.image(reference) if ensure is None else ensure(store)
