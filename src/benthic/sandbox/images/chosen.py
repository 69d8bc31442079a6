"""The layers that a sandbox stands on: its image's, and workspaces and toolkits beside it."""

from collections.abc import Sequence

from benthic.sandbox.images.store import Store
from benthic.sandbox.images.tiny import TINY, ensure_tiny


def chosen_layers(store: Store, image: str | None, layers: Sequence[str] = ()) -> tuple[str, ...]:
    """Digests, lowest first, each once.

    Args:
        image: a name or an id; None is the tiny image, made if it is not there.
        layers: digests of layers, or names of images, of which all but the base layers are taken.

    Raises:
        ImageError: the store has no such image or layer.
    """
    if image is None or image == TINY:
        ensure_tiny(store)
    digests = list(store.image(image or TINY).layers)
    for reference in layers:
        if reference.startswith("sha256:") and store.has_layer(reference):
            digests.append(reference)
        else:
            found = store.image(reference).layers
            digests += [digest for digest in found if store.layer(digest).kind != "base"]
    return tuple(dict.fromkeys(digests))
