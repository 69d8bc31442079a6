"""The store of images: whole layers or none, one digest for one content, and a count of users that survives crashes."""

import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images import Store, ensure_tiny
from benthic.sandbox.images.collect import collect
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.layer import can_pack
from benthic.sandbox.images.store import SNAPSHOT
from benthic.sandbox.images.writer import TreeWriter

IS_ROOT = os.geteuid() == 0
needs_erofs = pytest.mark.skipif(not (IS_ROOT and can_pack()), reason="EROFS layers need root and erofs-utils")


@pytest.fixture(params=["folder", pytest.param("erofs", marks=needs_erofs)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store", format=request.param)
    yield made
    for owner in made.owners():
        made.release(owner)
    assert not list((made.root / "mounts").iterdir())


def test_the_tiny_image_is_made_once_and_is_the_same_in_every_format(store: Store, tmp_path: Path) -> None:
    image = ensure_tiny(store)
    assert ensure_tiny(store) == image == ensure_tiny(Store(tmp_path / "other", format="folder"))
    paths = {entry.path: entry for entry in store.entries(image.layers[0])}
    assert paths["bin/sh"].target == "/bin/busybox"
    assert (paths["work"].uid, paths["tmp"].mode) == (1000, 0o1777)
    assert store.check(image.layers[0]) == []


def test_a_layer_is_mounted_while_anybody_uses_it(store: Store) -> None:
    layers = ensure_tiny(store).layers
    (tree,) = store.mount("first", layers)
    assert store.mount("second", layers) == (tree,)
    store.release("first")
    assert (tree / "bin/busybox").exists()
    store.release("second")
    store.release("second")
    assert store.owners() == []
    assert not os.path.ismount(tree)


@needs_erofs
@pytest.mark.parametrize("act", ["unmount", "Path.rmdir", "Path.unlink"])
def test_a_release_that_death_cuts_short_is_made_good_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Before the act and after it: the owner is still listed, or nothing is left."""
    store = Store(tmp_path / "store", format="erofs")
    layers = ensure_tiny(store).layers
    for is_after in (False, True):
        store.mount("first", layers)
        with monkeypatch.context() as patch:
            name = f"benthic.sandbox.images.store.{act}"
            patch.setattr(name, dying(resolve_name(name), is_after))
            with pytest.raises(SystemExit):
                store.release("first")
        for owner in store.owners():
            store.release(owner)
        assert not list((store.root / "mounts").iterdir())
        assert (store.owners(), list(store._holders.holders(layers[0]))) == ([], [])


def dying(act: Callable[..., object], is_after: bool) -> Callable[..., object]:
    """Death before an act or right after it."""

    def die(*args: object, **options: object) -> object:
        if is_after:
            act(*args, **options)
        raise SystemExit

    return die


def test_a_layer_that_only_a_snapshot_keeps_is_there_and_not_mounted(store: Store) -> None:
    layers = ensure_tiny(store).layers
    (tree,) = store.mount("user", layers)
    store.hold(f"{SNAPSHOT}one", layers)
    store.release("user")
    assert not os.path.ismount(tree)
    assert store.layer(layers[0]).digest == layers[0]
    assert store.mount("user", layers) == (tree,)
    assert (tree / "bin/busybox").exists()


def test_a_changed_byte_in_a_layer_is_found(tmp_path: Path) -> None:
    store = Store(tmp_path, format="folder")
    digest = ensure_tiny(store).layers[0]
    with store.opened([digest]) as (tree,):
        (tree / "etc/group").write_text("root:x:0:agent\n")
    assert store.check(digest) == ["etc/group: its content is not what was taken in"]


def test_an_unknown_image_is_answered_with_the_names_there_are(store: Store) -> None:
    ensure_tiny(store)
    with pytest.raises(ImageError, match=r"no image 'python:3'.*tiny:latest"):
        store.image("python:3")
    with pytest.raises(ImageError, match="is no name of an image"):
        store.image("../../etc")


def test_collecting_keeps_what_a_name_or_a_holder_lists(store: Store) -> None:
    tiny = ensure_tiny(store)
    layer = store.add_layer(one_file(b"x"), kind="toolkit", source="test")
    store.hold("sandbox", [layer.digest])
    assert collect(store).num_layers == 0
    store.release("sandbox")
    assert (collect(store).num_layers, store.has_layer(layer.digest)) == (1, False)
    with pytest.raises(ImageError, match="there is no layer"):
        store.hold("sandbox", [layer.digest])
    store.remove_name("tiny")
    collected = collect(store)
    assert (collected.num_layers, collected.num_images, store.layers()) == (1, 1, [])
    assert not store.has_layer(tiny.layers[0])


def test_collecting_sweeps_up_after_a_crash(store: Store) -> None:
    layers = ensure_tiny(store).layers
    code = (
        "import os, signal, sys; from pathlib import Path; from benthic.sandbox.images import Store\n"
        f"store = Store(Path(sys.argv[1])); layers = {layers!r}\n"
        "def crash(writer): os.kill(os.getpid(), signal.SIGKILL)\n"
        "with store.opened(layers): store.add_layer(crash, kind='base', source='test')\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", code, str(store.root)], env={"PYTHONPATH": "src", "PATH": os.environ["PATH"]}
    )
    assert died.returncode == -9
    assert len(list((store.root / "incoming").iterdir())) == 1
    assert len(store.owners()) == 1
    collect(store)
    assert list((store.root / "incoming").iterdir()) == store.owners() == []
    assert not list((store.root / "mounts").iterdir())


def test_many_processes_share_a_store(store: Store) -> None:
    code = (
        "import sys; from pathlib import Path; from benthic.sandbox.images import Store, ensure_tiny\n"
        "from benthic.sandbox.images.collect import collect\n"
        "store = Store(Path(sys.argv[1])); me = sys.argv[2]\n"
        "for _ in range(3):\n"
        "    image = ensure_tiny(store)\n"
        "    (tree,) = store.mount(me, image.layers)\n"
        "    assert (tree / 'bin/busybox').exists()\n"
        "    collect(store)\n"
        "    store.release(me)\n"
    )
    env = {"PYTHONPATH": "src", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", code, str(store.root)]
    running = [subprocess.Popen([*command, f"p{number}"], env=env) for number in range(4)]
    assert [process.wait(timeout=60) for process in running] == [0] * 4
    assert store.owners() == []


def test_a_file_that_ends_early_leaves_nothing(store: Store) -> None:
    with pytest.raises(ImageError, match="ends 3 bytes early"):
        store.add_layer(one_file(b"x", size=4), kind="base", source="test")
    assert store.layers() == []
    assert list((store.root / "incoming").iterdir()) == []


def test_a_blob_moves_in_under_its_digest(store: Store, tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(b"pages")
    digest = f"sha256:{hashlib.sha256(b'pages').hexdigest()}"
    assert store.add_blob(tmp_path / "memory", digest, source="test").size_bytes == 5
    assert store.blob(digest).read_bytes() == b"pages"
    assert store.check(digest) == []
    with pytest.raises(ImageError, match="is a blob"):
        store.mount("sandbox", [digest])
    assert store.owners() == []


def one_file(data: bytes, size: int | None = None) -> Callable[[TreeWriter], None]:
    entry = Entry(path="opt/x", type="file", size=len(data) if size is None else size)
    return lambda writer: writer.file(entry, io.BytesIO(data))
