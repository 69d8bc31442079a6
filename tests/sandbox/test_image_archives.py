"""Images come in from archives with every byte checked, and nothing hostile in an archive reaches the host."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images import Image, ImageConfig, Store, ensure_tiny
from benthic.sandbox.images.contents import open_stack
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.export import export_image
from benthic.sandbox.images.oci import MAX_LAYERS, architecture, import_image
from benthic.sandbox.images.tar import MAX_HEADER_BYTES, read_tar
from benthic.sandbox.images.writer import DEFAULT, Policy, TreeWriter


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store", format="folder")
    yield made
    assert made.owners() == []
    assert list((made.root / "incoming").iterdir()) == []


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def take(store: Store, data: bytes, policy: Policy = DEFAULT) -> dict[str, Entry]:
    layer = store.add_layer(
        lambda writer: read_tar(io.BytesIO(data), writer), kind="base", source="test", policy=policy
    )
    return {entry.path: entry for entry in store.entries(layer.digest)}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "climbs": (tar(member("a/../../evil", data=b"x")), "climbs"),
    "absolute": (tar(member("/etc/evil", data=b"x")), "absolute"),
    "below a link": (tar(member("a", tarfile.SYMTYPE, linkname="/tmp"), member("a/evil", data=b"x")), "links are not"),
    "hard link out": (tar(member("a", tarfile.LNKTYPE, linkname="/etc/passwd")), "no file of this layer"),
    "hard link up": (tar(member("a", tarfile.LNKTYPE, linkname="../../etc/passwd")), "no file of this layer"),
    "device": (tar(member("a", tarfile.CHRTYPE, devmajor=1, devminor=1)), "is a device"),
    "whiteout device": (tar(member("a", tarfile.CHRTYPE)), "is a device"),
    "block device": (tar(member("x/sda", tarfile.BLKTYPE, devmajor=8)), "is a device"),
    "owner": (tar(member("a", data=b"x", uid=1 << 20)), "owners must be"),
    "whiteout climbs": (tar(member("a/.wh...", data=b"")), "climbs|not normal"),
    "opaque root": (tar(member(".wh..wh..opq")), "root folder is marked opaque"),
    "long name": (tar(member("a" * 300, data=b"x")), "too long"),
    "cut": (tar(member("a", data=b"x" * 5000))[:2000], "cannot be read|ends"),
    "no tar": (b"not a tar archive at all" * 100, "cannot be read"),
    "empty link": (tar(member("a", tarfile.SYMTYPE, linkname="")), "points to"),
    "huge header": (tar(member("a", pax_headers={"comment": "x" * (2 * MAX_HEADER_BYTES)})), "header of"),
    "cut gzip": (gzip.compress(tar(member("a", data=os.urandom(5000))))[:3000], "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_or_broken_archive_is_refused_whole(store: Store, tmp_path: Path, name: str) -> None:
    data, says = HOSTILE[name]
    (store.root / "store.lock").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ImageError, match=says):
        take(store, data)
    assert sorted(tmp_path.rglob("*")) == before
    assert store.layers() == []


def test_an_archive_is_bounded_in_bytes_and_in_entries(store: Store) -> None:
    bomb = gzip.compress(tar(member("zeros", data=bytes(1 << 22))))
    with pytest.raises(ImageError, match="more than 1048576 bytes"):
        take(store, bomb, Policy(max_bytes=1 << 20))
    with pytest.raises(ImageError, match="more than 10 entries"):
        take(store, tar(*(member(f"f{number}") for number in range(11))), Policy(max_entries=10))


def test_archives_say_what_they_mean_by_whiteouts_links_and_repeated_names(store: Store) -> None:
    entries = take(
        store,
        tar(
            member("./", tarfile.DIRTYPE),
            member("./a/b", data=b"first"),
            member("./a/b", data=b"second"),
            member("./a/.wh.gone"),
            member("./o/.wh..wh..opq"),
            member("./o/kept", data=b"x"),
            member("./d", tarfile.DIRTYPE, mode=0o700),
            member("./.wh.d"),
            member("./dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
            member("./hard", tarfile.LNKTYPE, linkname="./a/b"),
            member("./soft", tarfile.SYMTYPE, linkname="../../../etc/passwd"),
            member("./setuid", data=b"x", mode=0o4755),
        ),
    )
    assert entries["a/b"].sha256 == hashlib.sha256(b"second").hexdigest()
    assert entries["hard"].group == entries["a/b"].group == "a/b"
    assert (entries["a/gone"].type, entries["o"].is_opaque, entries["d"].is_opaque) == ("whiteout", True, True)
    assert entries["soft"].target == "../../../etc/passwd"
    assert entries["setuid"].mode == 0o755
    assert "dev/null" not in entries


def test_setuid_bits_are_kept_in_the_list_alone(store: Store) -> None:
    data = tar(member("su", data=b"x", mode=0o4755))
    assert take(store, data, Policy(strip_set_id=False))["su"].mode == 0o4755
    with store.opened([store.layers()[0].digest]) as (tree,):
        assert (tree / "su").stat().st_mode & 0o7777 == 0o755


def oci_layout(folder: Path, layers: list[bytes], *, diff_ids: list[str] | None = None, **changes: Any) -> Path:
    """An OCI layout as other tools write it."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def add(data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": "x"}

    plain = [gzip.decompress(layer) if layer[:2] == b"\x1f\x8b" else layer for layer in layers]
    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": {"Env": ["A=b=c"], "Cmd": ["/bin/x"], "WorkingDir": "/srv", "User": "7"},
        "rootfs": {"diff_ids": diff_ids or [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in plain]},
    }
    manifest = {"config": add(json.dumps(config | changes).encode()), "layers": [add(layer) for layer in layers]}
    entry = add(json.dumps(manifest).encode()) | {"annotations": {"org.opencontainers.image.ref.name": "demo:1"}}
    (folder / "index.json").write_text(json.dumps({"manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


BASE = tar(member("srv", tarfile.DIRTYPE, mode=0o2750, uid=7), member("srv/a", data=b"a"), member("etc/b", data=b"b"))
UPPER = gzip.compress(tar(member("srv/.wh.a"), member("srv/c", data=b"c")))


def test_an_oci_layout_comes_in_with_its_configuration(store: Store, tmp_path: Path) -> None:
    (taken,) = import_image(store, oci_layout(tmp_path / "layout", [BASE, UPPER]))
    assert taken.name == "demo:1"
    assert store.image("demo:1") == taken.image
    assert taken.image.config == ImageConfig(env=(("A", "b=c"),), cwd="/srv", user="7", command=("/bin/x",))
    with open_stack(store, taken.image.layers) as contents:
        entries = {content.entry.path: content.entry for content in contents}
    assert "srv/a" not in entries
    assert {"srv/c", "etc/b", "work", "tmp", "etc/passwd"} <= set(entries)
    # The upper layer has no entry of its own for the folder; it keeps the bits that it has below.
    assert (entries["srv"].mode, entries["srv"].uid) == (0o2750, 7)


def test_what_docker_save_wrote_comes_in_under_each_of_its_names(store: Store, tmp_path: Path) -> None:
    config = {"architecture": architecture(), "os": "linux", "config": {"Env": None}}
    config["rootfs"] = {"diff_ids": [f"sha256:{hashlib.sha256(BASE).hexdigest()}"]}
    manifest = [{"Config": "c.json", "RepoTags": ["demo:1", "localhost:5000/demo:2"], "Layers": ["id/layer.tar"]}]
    saved = tar(
        member("id/layer.tar", data=BASE),
        member("c.json", data=json.dumps(config).encode()),
        member("manifest.json", data=json.dumps(manifest).encode()),
    )
    (tmp_path / "saved.tar.gz").write_bytes(gzip.compress(saved))
    taken = import_image(store, tmp_path / "saved.tar.gz")
    assert (
        [named.name for named in taken]
        == [named.name for named in store.images()]
        == ["demo:1", "localhost:5000/demo:2"]
    )
    assert taken[0].image == taken[1].image


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def largest(folder: Path) -> Path:
    return max(folder.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed layer": (lambda folder: flip(largest(folder)), "has the digest|cannot be read"),
    "missing layer": (lambda folder: largest(folder).unlink(), "no file"),
    "layer elsewhere": (
        lambda folder: (path := largest(folder)).unlink() or path.symlink_to("/etc/passwd"),
        "of its own",
    ),
    "no index": (lambda folder: (folder / "index.json").unlink(), "neither index.json nor"),
    "index of text": (lambda folder: (folder / "index.json").write_text('{"manifests": "x"}'), "should be a list"),
    "index no json": (lambda folder: (folder / "index.json").write_text("{"), "is no JSON"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_changed_layout_is_refused_and_leaves_no_layer(store: Store, tmp_path: Path, name: str) -> None:
    damage, says = BROKEN[name]
    folder = oci_layout(tmp_path / "layout", [BASE])
    damage(folder)
    with pytest.raises(ImageError, match=says):
        import_image(store, folder)
    assert store.images() == []
    assert store.layers() == []


def test_an_image_for_another_processor_or_with_wrong_plain_digests_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no image for"):
        import_image(store, oci_layout(tmp_path / "other", [BASE], architecture="s390x"))
    with pytest.raises(ImageError, match="without its compression has the digest"):
        import_image(store, oci_layout(tmp_path / "wrong", [UPPER], diff_ids=["sha256:" + "0" * 64]))


def test_an_exported_image_comes_in_elsewhere_with_the_same_digests(store: Store, tmp_path: Path) -> None:
    def fill(writer: TreeWriter) -> None:
        entry = Entry(path="opt/x", type="file", size=1, uid=1000, mode=0o640, modified_ns=1_700_000_000_123_456_789)
        writer.file(entry, io.BytesIO(b"x"))
        writer.hard_link("opt/y", "opt/x")
        writer.other(Entry(path="opt/é\udcff", type="link", mode=0o777, target="\udcfe"))
        writer.other(Entry(path="opt/fifo", type="fifo", modified_ns=5))
        writer.other(Entry(path="etc/hostname", type="whiteout", mode=0))
        writer.mark_opaque("home")

    tiny = ensure_tiny(store)
    layers = [*tiny.layers, store.add_layer(fill, kind="toolkit", source="test").digest]
    image = store.add_image(layers, tiny.config, name="mine")
    export_image(store, image, tmp_path / "mine.tar", name="mine")
    other = Store(tmp_path / "other", format="folder")
    (taken,) = import_image(other, tmp_path / "mine.tar")
    assert taken.name == "mine:latest"
    assert taken.image == image
    assert [other.layer(digest).kind for digest in layers] == ["base", "toolkit"]


def test_an_image_of_too_many_layers_comes_in_with_fewer_that_look_the_same(store: Store, tmp_path: Path) -> None:
    layers = [tar(member(f"f{number}", data=b"%d" % number), member(f".wh.f{number - 2}")) for number in range(20)]
    (taken,) = import_image(store, oci_layout(tmp_path / "layout", layers))
    assert len(taken.image.layers) == MAX_LAYERS + 1  # and the folders that every sandbox has
    with open_stack(store, taken.image.layers) as contents:
        files = {content.entry.path for content in contents if content.entry.path.startswith("f")}
    assert files == {"f18", "f19"}


def test_a_name_may_be_given_for_one_image(store: Store, tmp_path: Path) -> None:
    (taken,) = import_image(store, oci_layout(tmp_path / "layout", [BASE]), name="team/mine:2")
    assert taken.name == "team/mine:2"
    assert isinstance(taken.image, Image)
