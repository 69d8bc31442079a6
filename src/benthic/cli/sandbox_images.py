"""`benthic sandbox image`: the images that this machine's sandboxes start from."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from benthic.sandbox.images.image import Image
    from benthic.sandbox.images.store import Store

STATE_ROOT = Path("~/.local/state/benthic/sandbox")
MIB = 1 << 20

Root = Annotated[Path, typer.Option(help="Where this machine keeps its sandboxes' state.")]
Name = Annotated[str | None, typer.Option(help="What the image is called, as NAME:TAG.", show_default=False)]

image = typer.Typer(
    name="image", help="Images: take in, build, list, remove.", no_args_is_help=True, rich_markup_mode=None
)


@image.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="An OCI layout or what `docker save` wrote: a folder or a tar file.")],
    name: Name = None,
    keep_set_id: Annotated[bool, typer.Option(help="Keep setuid bits, for virtual machines.")] = False,
    max_bytes: Annotated[int, typer.Option(help="Of one layer, unpacked.")] = 64 << 30,
    root: Root = STATE_ROOT,
) -> None:
    """Take in the images of an archive, every byte checked."""
    from benthic.sandbox.images.oci import import_image
    from benthic.sandbox.images.writer import Policy

    store = _store(root)
    policy = Policy(strip_set_id=not keep_set_id, max_bytes=max_bytes)
    for taken in import_image(store, path, name=name, policy=policy):
        typer.echo(_line(store, taken.name, taken.image))


@image.command("export")
def export(
    name: Annotated[str, typer.Argument(help="An image of this machine.")],
    path: Annotated[Path, typer.Argument(help="The tar file to write.")],
    root: Root = STATE_ROOT,
) -> None:
    """Write an image as an OCI layout in a tar file."""
    from benthic.sandbox.images.export import export_image

    store = _store(root)
    export_image(store, store.image(name), path, name=name)


@image.command("disk")
def disk(
    name: Annotated[str, typer.Argument(help="An image of this machine.")],
    path: Annotated[Path, typer.Argument(help="The disk to write: .qcow2, or anything else for a raw one.")],
    size_mib: Annotated[int, typer.Option(help="Of the file system; what is not used takes no room.")] = 4096,
    root: Root = STATE_ROOT,
) -> None:
    """Write an image as an ext4 disk for a virtual machine."""
    from benthic.sandbox.images.disk import write_disk

    store = _store(root)
    form: Literal["raw", "qcow2"] = "qcow2" if path.suffix == ".qcow2" else "raw"
    write_disk(store, store.image(name).layers, path, size_bytes=size_mib * MIB, format=form)


@image.command("build")
def build(
    source: Annotated[Path, typer.Argument(help="A recipe (.toml), or a folder to put on the base.")],
    name: Name = None,
    base: Annotated[str | None, typer.Option(help="Of a folder: the image below it.", show_default="tiny")] = None,
    at: Annotated[str, typer.Option(help="Of a folder: where it goes in the sandbox.")] = "/work",
    owner: Annotated[int, typer.Option(help="Of a folder: user and group of its files.")] = 1000,
    root: Root = STATE_ROOT,
) -> None:
    """Make an image of a recipe or a folder."""
    from dataclasses import replace

    from benthic.errors import ConfigError
    from benthic.sandbox.images.build import build_image
    from benthic.sandbox.images.recipe import FolderLayer, Recipe, read_recipe

    if not source.is_dir():
        recipe = read_recipe(source)
        recipe = replace(recipe, name=name) if name is not None else recipe
    elif name is None:
        raise ConfigError("an image made of a folder has no name yet; give --name NAME:TAG")
    else:
        layer = FolderLayer(folder=".", at=at, owner=owner)
        recipe = Recipe(name=name, base=base, layers=(layer,))
    store = _store(root)
    built = build_image(store, recipe, source if source.is_dir() else source.parent)
    typer.echo(_line(store, built.name, built.image))


@image.command("ls")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    root: Root = STATE_ROOT,
) -> None:
    """List the images of this machine."""
    store = _store(root)
    for named in store.images():
        typer.echo(
            json.dumps(_record(store, named.name, named.image)) if as_json else _line(store, named.name, named.image)
        )


@image.command("rm")
def remove(
    names: Annotated[list[str], typer.Argument(help="Names of images; sandboxes that run on them go on.")],
    root: Root = STATE_ROOT,
) -> None:
    """Forget names of images; `gc` then frees what nothing uses."""
    store = _store(root)
    for name in names:
        store.remove_name(name)


@image.command("check")
def check(
    names: Annotated[list[str], typer.Argument(help="Names of images.")],
    root: Root = STATE_ROOT,
) -> None:
    """Read whole images and compare every byte with what was taken in; exits with 1 if any differs."""
    store = _store(root)
    wrong = 0
    for name in names:
        for digest in store.image(name).layers:
            for difference in store.check(digest):
                typer.echo(f"{name} {digest[:19]} {difference}")
                wrong += 1
    if wrong:
        raise typer.Exit(1)


@image.command("gc")
def collect_(root: Root = STATE_ROOT) -> None:
    """Remove layers that no image, sandbox or snapshot uses."""
    from benthic.sandbox.images.collect import collect

    found = collect(_store(root))
    typer.echo(f"{found.num_layers} layers ({found.size_bytes / MIB:.1f} MiB), {found.num_images} unnamed images")


def _store(root: Path) -> "Store":
    from benthic.sandbox.images.store import Store

    return Store(root.expanduser() / "store")


def _record(store: "Store", name: str, image: "Image") -> dict[str, Any]:
    layers = [store.layer(digest) for digest in image.layers]
    return {
        "name": name,
        "id": image.id,
        "size_bytes": sum(layer.size_bytes for layer in layers),
        "created_s": max((layer.created_s for layer in layers), default=0.0),
        "layers": [{"digest": layer.digest, "kind": layer.kind, "size_bytes": layer.size_bytes} for layer in layers],
    }


def _line(store: "Store", name: str, image: "Image") -> str:
    record = _record(store, name, image)
    made = time.strftime("%Y-%m-%d %H:%M", time.gmtime(record["created_s"]))
    size = record["size_bytes"] / MIB
    return f"{name:<32} {record['id'][7:19]} {len(image.layers):>3} layers {size:>9.1f} MiB  {made}"
