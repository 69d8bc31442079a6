"""Takes images in from OCI layouts and from what `docker save` writes, as folders or archives, without a registry.

Every byte is held against the digest that the image's own manifest gives, while it is unpacked: a layer that does not
match is not kept.
"""

import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from benthic.errors import shown
from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.archive import Archive, Checked, blob_name
from benthic.sandbox.images.complete import completed
from benthic.sandbox.images.entry import by_path
from benthic.sandbox.images.image import ImageConfig, check_digest, full_name
from benthic.sandbox.images.layer import LAYER_KINDS, Layer, LayerKind
from benthic.sandbox.images.snapshot import merge_layers
from benthic.sandbox.images.stack import distinct, stack
from benthic.sandbox.images.store import NamedImage, Store
from benthic.sandbox.images.tar import plain, read_tar
from benthic.sandbox.images.writer import DEFAULT, Policy, TreeWriter

KIND_NOTE = "org.benthic.layer.kind"
NAME_NOTES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_MAX_DEPTH = 4
MAX_LAYERS = 12
"""Of an image that is taken in; others are laid on them, and an overlay takes a limited number in all."""


@dataclass(frozen=True, slots=True)
class Blob:
    """One layer of an image as it travels."""

    name: str
    """Its file in the archive."""
    digest: str | None
    """Of the file's bytes; `docker save` gives none."""
    plain_digest: str | None
    """Of the bytes without compression."""
    kind: LayerKind


@dataclass(frozen=True, slots=True)
class Found:
    """One image of an archive."""

    names: tuple[str, ...]
    config: dict[str, Any]
    blobs: tuple[Blob, ...]


def import_image(
    store: Store, path: Path, *, name: str | None = None, policy: Policy = DEFAULT, is_completed: bool = True
) -> list[NamedImage]:
    """Takes in every image of an archive that is made for this processor.

    Args:
        path: a folder or a tar archive, an OCI layout or what `docker save` wrote.
        name: for the one image of the archive, in place of its own names.
        is_completed: adds the small layer of `complete.py` if something is missing, and merges the lowest layers of an
            image that has more than an overlay should.

    Raises:
        ImageError: there is none, one is broken or has no name, or a layer holds what none may.
    """
    with Archive(path) as archive, store.adding():
        found = list(_find(archive))
        if not found:
            raise ImageError(f"{path} has no image for {architecture()}; save one for this processor")
        if name is not None and len(found) > 1:
            raise ImageError(f"{path} has {len(found)} images; import it without a name, and each keeps its own")
        taken = []
        for image in found:
            names = (full_name(name),) if name is not None else image.names
            if not names:
                raise ImageError(f"an image of {path} has no name; give one")
            layers = _take_layers(store, archive, image, policy)
            layers = completed(store, _bounded(store, layers)) if is_completed else layers
            taken += [NamedImage(each, store.add_image(layers, _config(image), name=each)) for each in names]
        return taken


def _find(archive: Archive) -> Iterator[Found]:
    if archive.has("manifest.json"):  # `docker save` writes it beside an OCI layout too, with whole names
        return _find_saved(archive, _json(archive, "manifest.json"))
    if archive.has("index.json"):
        return _find_manifests(archive, _json(archive, "index.json"), (), 0)
    raise ImageError(
        f"{archive.path} has neither index.json nor manifest.json; it is no OCI layout and no `docker save`"
    )


def _find_saved(archive: Archive, manifest: Any) -> Iterator[Found]:
    for item in _list(manifest):
        config = _json(archive, _field(item, "Config", str))
        digests = _plain_digests(config)
        names = _field(item, "Layers", list)
        if len(names) != len(digests):
            raise ImageError(f"an image of {archive.path} has {len(names)} layers and {len(digests)} digests of them")
        blobs = tuple(Blob(str(name), None, digest, "base") for name, digest in zip(names, digests, strict=True))
        tags = tuple(full_name(str(tag)) for tag in item.get("RepoTags") or ())
        if _fits(config):
            yield Found(tags, config, blobs)


def _find_manifests(archive: Archive, index: Any, names: tuple[str, ...], depth: int) -> Iterator[Found]:
    if depth > _MAX_DEPTH:
        raise ImageError(f"{archive.path} has an index of indices {depth} deep; {_MAX_DEPTH} are enough for any image")
    for item in _list(_field(index, "manifests", list)):
        digest = _field(item, "digest", str)
        manifest = _json_blob(archive, digest)
        own = _names(item) or names
        if "manifests" in manifest:
            yield from _find_manifests(archive, manifest, own, depth + 1)
        elif "layers" in manifest:
            config = _json_blob(archive, _field(_field(manifest, "config", dict), "digest", str))
            if _fits(config):
                yield Found(own, config, _blobs(manifest, config))


def _blobs(manifest: dict[str, Any], config: dict[str, Any]) -> tuple[Blob, ...]:
    layers = _list(_field(manifest, "layers", list))
    digests: list[str | None] = [*_plain_digests(config)] or [None] * len(layers)
    if len(digests) != len(layers):
        raise ImageError(f"an image has {len(layers)} layers and {len(digests)} digests of them")
    blobs = []
    for item, plain_digest in zip(layers, digests, strict=True):
        digest = _field(item, "digest", str)
        check_digest(digest)
        kind = (item.get("annotations") or {}).get(KIND_NOTE, "base")
        blobs.append(Blob(blob_name(digest), digest, plain_digest, kind if kind in LAYER_KINDS else "base"))
    return tuple(blobs)


def _take_layers(store: Store, archive: Archive, image: Found, policy: Policy) -> list[str]:
    layers: list[Layer] = []
    for blob in image.blobs:
        below = stack([store.entries(layer.digest) for layer in layers], is_bottom=True)
        lower = by_path(place.entry for place in below)
        layers.append(
            store.add_layer(
                lambda writer, blob=blob: _unpack(archive, blob, writer),  # type: ignore[misc]
                kind=blob.kind,
                source=f"{archive.path.name}: {blob.name}",
                policy=policy,
                lower=lower,
            )
        )
    return list(distinct([layer.digest for layer in layers]))


def _bounded(store: Store, layers: list[str]) -> list[str]:
    num_merged = len(layers) - MAX_LAYERS + 1
    if num_merged <= 1:
        return layers
    return [merge_layers(store, layers[:num_merged], is_bottom=True, kind="base").digest, *layers[num_merged:]]


def _unpack(archive: Archive, blob: Blob, writer: TreeWriter) -> None:
    with archive.open(blob.name) as file:
        outer = Checked(file)
        inner = Checked(plain(cast(BinaryIO, outer)))
        read_tar(cast(BinaryIO, inner), writer)
        if blob.plain_digest is not None:
            inner.check(blob.plain_digest, f"layer {blob.name} without its compression")
        if blob.digest is not None:
            outer.check(blob.digest, f"layer {blob.name}")


def _config(image: Found) -> ImageConfig:
    config = image.config.get("config") or {}
    pairs = (str(pair).partition("=") for pair in config.get("Env") or ())
    return ImageConfig(
        env=tuple((name, value) for name, _, value in pairs),
        cwd=str(config.get("WorkingDir") or "/"),
        user=str(config.get("User") or ""),
        entrypoint=tuple(map(str, config.get("Entrypoint") or ())),
        command=tuple(map(str, config.get("Cmd") or ())),
    )


def _names(item: dict[str, Any]) -> tuple[str, ...]:
    notes = item.get("annotations") or {}
    name = next((str(notes[note]) for note in NAME_NOTES if note in notes), None)
    return () if name is None else (full_name(name),)


def _fits(config: dict[str, Any]) -> bool:
    return config.get("architecture", architecture()) == architecture() and config.get("os", "linux") == "linux"


def architecture() -> str:
    """This processor, as images name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _plain_digests(config: dict[str, Any]) -> list[str]:
    digests = [str(digest) for digest in (config.get("rootfs") or {}).get("diff_ids") or ()]
    for digest in digests:
        check_digest(digest)
    return digests


def _json(archive: Archive, name: str) -> Any:
    try:
        return json.loads(archive.read(name))
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{name!r} in {archive.path} is no JSON: {error}; get the image again") from None


def _json_blob(archive: Archive, digest: str) -> dict[str, Any]:
    check_digest(digest)
    with archive.open(blob_name(digest)) as file:
        Checked(file).check(digest, f"blob {digest}")
    found = _json(archive, blob_name(digest))
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def _field(item: Any, name: str, kind: type) -> Any:
    value = item.get(name) if isinstance(item, dict) else None
    if not isinstance(value, kind):
        raise ImageError(f"an image's manifest has {shown(value)} as {name!r}; it should be a {kind.__name__}")
    return value


def _list(items: Any) -> list[dict[str, Any]]:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ImageError(f"an image's manifest has {shown(items)}; it should be a list of objects")
    return items
