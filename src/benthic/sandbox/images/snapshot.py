"""What a sandbox has written, as a layer; and long chains of such layers, merged.

An overlay looks a name up in every layer, and the kernel takes a limited number of them: a sandbox that is snapshotted
after each step would slow down and then stop. So chains past a limit are merged into one layer, which looks the same.
"""

from collections.abc import Sequence
from pathlib import Path

from benthic.sandbox.images.contents import open_stack, write_contents
from benthic.sandbox.images.layer import Layer, LayerKind
from benthic.sandbox.images.stack import distinct
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.walk import Walk
from benthic.sandbox.images.writer import OPAQUE, Policy

MAX_CHAIN = 16
"""Layers above the image after which a chain is merged."""
RUNTIME_FOLDERS = ("dev", "proc", "sys")
"""Mount points whose content belongs to the running sandbox."""
KEEP_BITS = Policy(strip_set_id=False)


def snapshot_upper(
    store: Store, upper: Path, *, source: str, id_base: int = 0, opaque: str = OPAQUE, policy: Policy = KEEP_BITS
) -> Layer:
    """Takes the upper folder of an overlay in as a layer, whiteouts kept. Freeze the sandbox around it.

    Args:
        upper: the folder; no link in it is followed. Sockets and devices are left out, as are extended attributes.
        id_base: the host's id that is root inside. The host's own root counts as root inside, others as nobody.
        opaque: the attribute of folders that hide what is below; `user.overlay.opaque` under `userxattr`.
        policy: its `max_bytes` bounds the files' lengths, holes included, which the sandbox's quota may not.

    Raises:
        ImageError: it is larger than the policy allows, or changes while it is read.
    """

    walk = Walk(id_base=id_base, opaque=opaque, left_out=RUNTIME_FOLDERS)
    return store.add_layer(
        lambda writer: walk.copy(upper, writer), kind="snapshot", source=source, policy=policy, is_compressed=False
    )


def merge_layers(store: Store, digests: Sequence[str], *, is_bottom: bool, kind: LayerKind = "snapshot") -> Layer:
    """One layer that looks like several, lowest first.

    Args:
        is_bottom: the first is the lowest of the image, so that nothing has to be hidden any more.
    """
    with store.adding(), open_stack(store, digests, is_bottom=is_bottom) as contents:
        return store.add_layer(
            lambda writer: write_contents(writer, contents),
            kind=kind,
            source=f"merged from {len(digests)} layers",
            policy=KEEP_BITS,
            is_compressed=False,
        )


def bounded_chain(store: Store, digests: Sequence[str], *, limit: int = MAX_CHAIN) -> tuple[str, ...]:
    """The layers that a sandbox has above its image, each once, merged into one when there are more than `limit`.

    Hold the result before the old layers are released.
    """
    digests = distinct(digests)
    if len(digests) <= limit:
        return digests
    return (merge_layers(store, digests, is_bottom=False).digest,)
