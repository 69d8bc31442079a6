"""The store of images: whole layers or none, one digest for one content, and a count of users that survives crashes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images import Store, ensure_tiny
from benthic.sandbox.images.layer import can_pack

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
