"""Entries together with the files that hold their bytes: what disks, archives and merged layers are made from."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.stack import stack
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.writer import TreeWriter


@dataclass(frozen=True, slots=True)
class Content:
    """An entry and, of a file, where its bytes can be read."""

    entry: Entry
    path: Path


@contextmanager
def open_stack(store: Store, digests: Sequence[str], *, is_bottom: bool = True) -> Iterator[list[Content]]:
    """Layers stacked, lowest first, readable while the block runs; see `stack`."""
    with store.opened(digests) as trees:
        placed = stack([store.entries(digest) for digest in digests], is_bottom=is_bottom)
        yield [Content(place.entry, trees[place.layer] / place.entry.path) for place in placed]


def write_contents(writer: TreeWriter, contents: Iterable[Content]) -> None:
    """Copies a stack into a tree of its own."""
    first: dict[str, str] = {}
    for content in contents:
        entry = content.entry
        if entry.type == "folder":
            writer.folder(entry)
        elif entry.type != "file":
            writer.other(entry)
        elif entry.group in first:
            writer.hard_link(entry.path, first[entry.group])
        else:
            with open(content.path, "rb") as data:
                writer.file(entry, data)
            if entry.group is not None:
                first[entry.group] = entry.path
