"""Writes an image as an OCI layout in a tar archive, for other tools and for other hosts: taken in there, it has the
same layers with the same digests."""

import hashlib
import io
import json
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from benthic.sandbox.images.archive import Checked, blob_name
from benthic.sandbox.images.contents import open_stack
from benthic.sandbox.images.image import Image, full_name
from benthic.sandbox.images.layer import Layer
from benthic.sandbox.images.oci import KIND_NOTE, NAME_NOTES, architecture
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.tar import write_tar

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"


def export_image(store: Store, image: Image, target: Path, *, name: str) -> None:
    """Writes an image with all its layers.

    Args:
        target: a new file, beside which there must be room for the largest layer once more.
        name: what it is called where it is taken in.
    """
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as out:
        layout = _Layout(out, target.parent)
        layout.add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        layers = [layout.add_layer(store, store.layer(digest)) for digest in image.layers]
        config = layout.add_json(CONFIG_TYPE, _config(image, [str(layer["digest"]) for layer in layers]))
        manifest = layout.add_json(
            MANIFEST_TYPE, {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers}
        )
        manifest["annotations"] = {note: full_name(name) for note in NAME_NOTES}
        layout.add("index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())


@dataclass(slots=True)
class _Layout:
    """An OCI layout in the making; each blob is written once."""

    out: tarfile.TarFile
    scratch: Path
    known: set[str] = field(default_factory=set)

    def add(self, name: str, data: bytes) -> None:
        self._add(name, len(data), io.BytesIO(data))

    def add_json(self, media_type: str, value: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(value, sort_keys=True).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.add(blob_name(digest), data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def add_layer(self, store: Store, layer: Layer) -> dict[str, Any]:
        with tempfile.TemporaryFile(dir=self.scratch) as file:
            with open_stack(store, [layer.digest], is_bottom=False) as contents:
                write_tar(contents, file)
            size = file.tell()
            file.seek(0)
            counted = Checked(cast(BinaryIO, file))
            digest = counted.digest()
            file.seek(0)
            self._add(blob_name(digest), size, cast(BinaryIO, file))
        return {"mediaType": LAYER_TYPE, "digest": digest, "size": size, "annotations": {KIND_NOTE: layer.kind}}

    def _add(self, name: str, size: int, data: BinaryIO) -> None:
        if name in self.known:
            return
        self.known.add(name)
        member = tarfile.TarInfo(name)
        member.size = size
        self.out.addfile(member, data)


def _config(image: Image, digests: list[str]) -> dict[str, Any]:
    config = image.config
    return {
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": [f"{name}={value}" for name, value in config.env],
            "WorkingDir": config.cwd,
            "User": config.user,
            "Entrypoint": list(config.entrypoint),
            "Cmd": list(config.command),
        },
        "rootfs": {"type": "layers", "diff_ids": digests},
    }
