"""What layers look like stacked, computed from their lists as overlayfs would show them. Pure: nothing is mounted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from benthic.sandbox.images.entry import Entry, Listing, listing


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry of a stack, and where its content lies."""

    entry: Entry
    layer: int
    """Which layer of the stack has it, counted from the lowest."""


@dataclass(slots=True)
class _Node:
    entry: Entry
    layer: int
    children: dict[str, "_Node"] = field(default_factory=dict)


def stack(layers: Sequence[Listing], *, is_bottom: bool) -> tuple[Placed, ...]:
    """Stacks lists, lowest first.

    Args:
        is_bottom: nothing lies below, so whiteouts and opaque marks have done their work and go; else both stay, and
            the result on anything looks as the layers on it do.

    Returns:
        Entries sorted by path, hard links kept among those that are left of one layer's group.
    """
    root = _Node(Entry(path="root", type="folder"), 0)
    for index, entries in enumerate(layers):
        for entry in entries:
            _lay(root, index, entry, is_bottom)
    placed = {node.entry.path: node.layer for node in _walk(root)}
    return tuple(Placed(entry, placed[entry.path]) for entry in listing(_grouped(node) for node in _walk(root)))


def distinct(digests: Sequence[str]) -> tuple[str, ...]:
    """Each layer once, in its topmost place: overlayfs refuses a layer twice, and the lower one shows nothing.

    All that a layer says of a path it says again on top, so what its lower copy had said there is covered.
    """
    return tuple(reversed(dict.fromkeys(reversed(digests))))


def _lay(root: _Node, layer: int, entry: Entry, is_bottom: bool) -> None:
    *parents, name = entry.path.split("/")
    folder = root
    for part in parents:
        folder = folder.children[part]
    below = folder.children.get(name)
    if entry.type == "whiteout" and is_bottom:
        folder.children.pop(name, None)
    elif entry.type != "folder":
        folder.children[name] = _Node(entry, layer)
    elif below is None or below.entry.type != "folder" or entry.is_opaque:
        hides = entry.is_opaque or below is not None
        folder.children[name] = _Node(replace(entry, is_opaque=hides and not is_bottom), layer)
    else:
        below.entry, below.layer = replace(entry, is_opaque=below.entry.is_opaque), layer


def _walk(node: _Node) -> Iterator[_Node]:
    for name in sorted(node.children):
        child = node.children[name]
        yield child
        yield from _walk(child)


def _grouped(node: _Node) -> Entry:
    group = node.entry.group
    return node.entry if group is None else replace(node.entry, group=f"{node.layer}:{group}")
