"""Layers stacked by their lists look as the kernel's overlay shows them, and as one merged layer."""

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.contents import open_stack
from benthic.sandbox.images.entry import Entry, decode, digest_of, encode, listing
from benthic.sandbox.images.snapshot import bounded_chain, merge_layers, snapshot_upper
from benthic.sandbox.images.stack import distinct, stack
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.writer import Policy

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="overlayfs is mounted as root")
HASH = hashlib.sha256(b"").hexdigest()


def file(path: str, group: str | None = None) -> Entry:
    return Entry(path=path, type="file", sha256=HASH, group=group)


def folder(path: str, is_opaque: bool = False) -> Entry:
    return Entry(path=path, type="folder", is_opaque=is_opaque)


def whiteout(path: str) -> Entry:
    return Entry(path=path, type="whiteout")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/bin/sh", "absolute"),
        ("a/../../b", "climbs"),
        ("a//b", "not normal"),
        ("a/./b", "not normal"),
        ("", "not normal"),
    ]
    + [("a\0b", "not normal"), ("x" * 256, "too long"), ("/".join(["x" * 200] * 21), "too long")],
)
def test_a_path_that_could_leave_the_layer_is_refused(path: str, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        file(path)


def test_a_list_is_one_digest_in_whatever_order_and_survives_its_text_form() -> None:
    entries = [
        folder("a"),
        file("a/x", "g"),
        file("a/y", "g"),
        file("a.b"),
        Entry(path="l", type="link", target="\udcff"),
    ]
    one = listing(entries)
    assert [entry.path for entry in one] == ["a", "a/x", "a/y", "a.b", "l"]
    assert one[1].group == one[2].group == "a/x"
    assert digest_of(listing(reversed(entries))) == digest_of(one)
    assert decode(encode(one)) == one
    with pytest.raises(ImageError, match="not in order"):
        decode(b"".join(reversed(encode(one).splitlines(keepends=True))))


def test_a_path_below_a_link_or_twice_is_refused() -> None:
    with pytest.raises(ImageError, match="no folder of this layer"):
        listing([Entry(path="a", type="link", target="/etc"), file("a/passwd")])
    with pytest.raises(ImageError, match="comes twice"):
        listing([file("a"), file("a")])


def test_whiteouts_hide_and_stay_only_where_something_may_lie_below() -> None:
    below = listing([folder("d"), file("d/x"), file("d/y"), file("f")])
    above = listing([folder("d", is_opaque=True), file("d/z"), whiteout("f"), whiteout("g")])
    bottom = {place.entry.path: place.entry for place in stack([below, above], is_bottom=True)}
    assert sorted(bottom) == ["d", "d/z"]
    assert not bottom["d"].is_opaque
    upper = {place.entry.path: place.entry for place in stack([below, above], is_bottom=False)}
    assert {path: entry.type for path, entry in upper.items()} == {
        "d": "folder",
        "d/z": "file",
        "f": "whiteout",
        "g": "whiteout",
    }
    assert upper["d"].is_opaque


def test_a_folder_over_a_file_hides_what_the_file_hid() -> None:
    merged = stack([listing([file("p")]), listing([folder("p"), file("p/x")])], is_bottom=False)
    assert merged[0].entry.is_opaque


def test_a_layer_that_comes_again_covers_its_lower_copy() -> None:
    once = listing([folder("d"), file("d/x"), whiteout("e")])
    between = listing([folder("d"), whiteout("d/x"), file("d/y"), file("e")])
    thrice = stack([once, between, once], is_bottom=False)
    assert [place.entry for place in thrice] == [place.entry for place in stack([between, once], is_bottom=False)]
    assert distinct(["a", "b", "a", "c", "c"]) == ("b", "a", "c")


def test_hard_links_live_on_among_the_paths_that_are_left() -> None:
    below = listing([file("a", "1"), file("b", "1"), file("c", "1")])
    merged = stack([below, listing([whiteout("a")])], is_bottom=True)
    assert [(place.entry.path, place.entry.group) for place in merged] == [("b", "b"), ("c", "b")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store")
    yield made
    assert made.owners() == []
    assert not list((made.root / "mounts").iterdir())


class Overlay:
    """A chain of layers with an upper folder, mounted."""

    def __init__(self, store: Store, layers: list[str], home: Path) -> None:
        self.store, self.layers, self.home = store, layers, home
        self.upper, self.work, self.root = home / "upper", home / "work", home / "root"

    def __enter__(self) -> Path:
        for path in (self.home, self.upper, self.work, self.root, self.home / "empty"):
            path.mkdir()
        trees = [*reversed(self.store.mount(self.home.name, distinct(self.layers))), self.home / "empty"]
        lower = ":".join(map(str, trees))
        options = f"lowerdir={lower},upperdir={self.upper},workdir={self.work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self.root)], check=True)
        return self.root

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", str(self.root)], check=True)
        self.store.release(self.home.name)


def look(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a program can see of a tree."""
    seen: dict[str, tuple[object, ...]] = {}
    for parent, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(parent, name)
            stat = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            seen[str(path.relative_to(root))] = (stat.st_mode, stat.st_uid, stat.st_mtime_ns // 1000, content)
    return seen


def scramble(root: Path, rng: random.Random) -> None:
    """Some random changes, as an agent makes them."""
    names = ["a", "b", "c"]
    for _ in range(12):
        path = root.joinpath(*(rng.choice(names) for _ in range(rng.randint(1, 3))))
        folders = [root / parent for parent in path.relative_to(root).parents]
        if not all(folder.is_dir() and not folder.is_symlink() for folder in folders):
            continue
        exists = os.path.lexists(path)
        match rng.choice(["file", "folder", "link", "remove", "remove", "chmod", "rename"]):
            case "file" if not exists or (path.is_file() and not path.is_symlink()):
                path.write_bytes(rng.randbytes(rng.randint(0, 3)))
            case "folder" if not exists:
                path.mkdir()
            case "link" if not exists:
                path.symlink_to(rng.choice(["a", "/etc/passwd", "../x"]))
            case "remove" if exists:
                subprocess.run(["rm", "-rf", str(path)], check=True)
            case "chmod" if exists and not path.is_symlink():
                path.chmod(rng.choice([0o700, 0o755, 0o777]))
            case "rename" if exists and path.is_file() and not path.is_symlink():
                os.replace(path, path.with_name("moved"))
            case _:
                pass


@is_root
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 40))])
def test_a_chain_of_snapshots_looks_like_the_sandbox_and_like_its_merged_form(
    store: Store, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    layers: list[str] = []
    with store.adding():
        for step in range(4):
            overlay = Overlay(store, layers, tmp_path / f"step-{step}")
            with overlay as root:
                scramble(root, rng)
                seen = look(root)
                layers.append(snapshot_upper(store, overlay.upper, source="test").digest)
            merged_bottom = merge_layers(store, layers, is_bottom=True).digest
            merged_top = merge_layers(store, layers[1:], is_bottom=False).digest if step else layers[0]
            chains = {"chain": layers, "bottom": [merged_bottom], "top": [layers[0], merged_top] if step else layers}
            for name, chain in chains.items():
                with Overlay(store, chain, tmp_path / f"{name}-{step}") as root:
                    assert look(root) == seen, (name, step)
            with open_stack(store, layers) as contents:
                assert sorted(content.entry.path for content in contents) == sorted(seen)


@is_root
def test_a_snapshot_gives_ids_as_the_sandbox_saw_them_and_keeps_hard_links(store: Store, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    for name, owner in {"root": 300_000, "agent": 301_000, "host": 0, "stranger": 7}.items():
        (upper / name).write_text(name)
        os.chown(upper / name, owner, owner)
    os.link(upper / "agent", upper / "agent2")
    os.mkfifo(upper / "fifo")
    (upper / "proc").mkdir()
    (upper / "proc" / "left").write_text("x")
    layer = snapshot_upper(store, upper, source="test", id_base=300_000)
    entries = {entry.path: entry for entry in store.entries(layer.digest)}
    assert {path: entries[path].uid for path in ("root", "agent", "host", "stranger")} == {
        "root": 0,
        "agent": 1000,
        "host": 0,
        "stranger": 65534,
    }
    assert entries["agent2"].group == entries["agent"].group == "agent"
    assert entries["fifo"].type == "fifo"
    assert "proc/left" not in entries


@is_root
def test_a_snapshot_follows_no_link_and_counts_holes(store: Store, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "out").symlink_to("/etc")
    (upper / "shadow").symlink_to("/etc/shadow")
    layer = snapshot_upper(store, upper, source="test")
    assert {entry.path: entry.type for entry in store.entries(layer.digest)} == {"out": "link", "shadow": "link"}
    with open(upper / "sparse", "wb") as sparse:
        sparse.truncate(1 << 30)
    with pytest.raises(ImageError, match="more than 1048576 bytes"):
        snapshot_upper(store, upper, source="test", policy=Policy(max_bytes=1 << 20))


@is_root
def test_a_long_chain_is_merged_past_the_limit(store: Store, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    layers = []
    for number in range(4):
        (upper / f"f{number}").touch()
        layers.append(snapshot_upper(store, upper, source="test").digest)
    assert bounded_chain(store, layers, limit=4) == tuple(layers)
    (merged,) = bounded_chain(store, layers, limit=3)
    assert [entry.path for entry in store.entries(merged)] == ["f0", "f1", "f2", "f3"]
