"""Makes images from recipes and folders. Nothing runs as part of a build but mmdebstrap: what an image needs beyond
files is done once in a sandbox, whose snapshot is a layer like any other."""

import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, cast

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.complete import NEEDED, completed
from benthic.sandbox.images.image import Image, ImageConfig, full_name
from benthic.sandbox.images.layer import Layer
from benthic.sandbox.images.recipe import Debian, FolderLayer, Recipe
from benthic.sandbox.images.store import NamedImage, Store
from benthic.sandbox.images.tar import read_tar
from benthic.sandbox.images.tiny import PATH, ensure_tiny
from benthic.sandbox.images.walk import Walk
from benthic.sandbox.images.writer import Policy, TreeWriter

DEBIAN_CONFIG = ImageConfig(env=(("PATH", PATH),), cwd="/work", user="1000", command=("/bin/bash",))
SAID_LEN = 2000


def build_image(store: Store, recipe: Recipe, folder: Path) -> NamedImage:
    """Makes an image and names it.

    Args:
        folder: what the recipe's own folders are relative to.

    Raises:
        ImageError: the base is not in the store, a folder is missing, or mmdebstrap failed.
    """
    with store.adding():
        base = _base(store, recipe)
        layers = [*base.layers, *(add_folder(store, folder / layer.folder, layer).digest for layer in recipe.layers)]
        env = dict(base.config.env) | dict(recipe.env)
        config = ImageConfig(
            env=tuple(env.items()),
            cwd=recipe.cwd or base.config.cwd,
            user=base.config.user,
            entrypoint=base.config.entrypoint,
            command=base.config.command,
        )
        return NamedImage(full_name(recipe.name), store.add_image(layers, config, name=recipe.name))


def add_folder(store: Store, folder: Path, how: FolderLayer) -> Layer:
    """Takes a folder of the host in as a layer; its links are kept and not followed.

    Raises:
        ImageError: it is no folder.
    """
    if not folder.is_dir():
        raise ImageError(f"there is no folder {folder} to make a layer of")
    walk = Walk(at=how.at.strip("/"), owner=how.owner)
    policy = Policy(modified_s=None if how.keep_times else 0)
    return store.add_layer(
        lambda writer: walk.copy(folder, writer),
        kind=how.kind,
        source=f"folder {folder}",
        policy=policy,
        lower=NEEDED,  # the same below every image, so that a layer does not depend on what it stands on
    )


def add_debian(store: Store, debian: Debian) -> Layer:
    """Makes a base layer of Debian packages; takes a network and some twenty seconds.

    Raises:
        ImageError: mmdebstrap is not installed, or failed; the message has the end of what it said.
    """
    source = f"mmdebstrap {debian.suite} {' '.join(debian.packages)}".rstrip()
    return store.add_layer(lambda writer: _debootstrap(writer, debian), kind="base", source=source)


def _base(store: Store, recipe: Recipe) -> Image:
    if recipe.debian is not None:
        layers = completed(store, [add_debian(store, recipe.debian).digest])
        return Image(layers=tuple(layers), config=DEBIAN_CONFIG)
    return store.image(recipe.base) if recipe.base is not None else ensure_tiny(store)


def _debootstrap(writer: TreeWriter, debian: Debian) -> None:
    command = ["mmdebstrap", "--quiet", "--format=tar", f"--variant={debian.variant}"]
    command += [f"--include={','.join(debian.packages)}"] if debian.packages else []
    command += [debian.suite, "-", *([debian.mirror] if debian.mirror else [])]
    with tempfile.TemporaryFile() as said:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said, env=dict(_environment())
            )
        except FileNotFoundError:
            raise ImageError("mmdebstrap is not installed; install the Debian package mmdebstrap") from None
        broken: ImageError | None = None
        with process:
            out = cast(BinaryIO, process.stdout)
            try:
                read_tar(out, writer)
                while out.read(1 << 20):  # padding behind the archive's end
                    pass
            except ImageError as error:
                broken = error
        if process.returncode:
            said.seek(0)
            text = said.read().decode("utf-8", "replace").strip()[-SAID_LEN:]
            raise ImageError(f"mmdebstrap ended with {process.returncode}: {text}") from broken
        if broken is not None:
            raise broken


def _environment() -> Iterable[tuple[str, str]]:
    """A build takes the way to the network from its caller, and nothing else."""
    yield "PATH", os.environ.get("PATH", PATH)
    for name in ("http_proxy", "https_proxy", "no_proxy", "TMPDIR"):
        for spelled in (name, name.upper()):
            if spelled in os.environ:
                yield spelled, os.environ[spelled]
