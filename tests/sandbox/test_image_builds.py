"""Images from recipes and folders, and the verbs of the command line around them."""

import json
import os
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from benthic.cli.command import run
from benthic.sandbox.errors import ImageError
from benthic.sandbox.images import Store
from benthic.sandbox.images.build import build_image
from benthic.sandbox.images.chosen import chosen_layers
from benthic.sandbox.images.contents import open_stack
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.recipe import Debian, FolderLayer, Recipe, read_recipe


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", format="folder")


def seen(store: Store, layers: tuple[str, ...]) -> dict[str, Entry]:
    with open_stack(store, layers) as contents:
        return {content.entry.path: content.entry for content in contents}


def make_folder(path: Path) -> Path:
    (path / "sub").mkdir(parents=True)
    (path / "sub/program").write_text("#!/bin/sh\necho hello\n")
    (path / "sub/program").chmod(0o755)
    (path / "outside").symlink_to("/etc/shadow")
    return path


def test_a_folder_goes_where_the_recipe_says_and_equal_folders_are_one_layer(store: Store, tmp_path: Path) -> None:
    make_folder(tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two", symlinks=True)
    os.utime(tmp_path / "two/sub/program", (1, 1))
    images = [
        build_image(store, Recipe(name=name, layers=(FolderLayer(folder=name, at="/opt/tool", owner=1000),)), tmp_path)
        for name in ("one", "two")
    ]
    assert images[0].image == images[1].image
    entries = seen(store, images[0].image.layers)
    assert (entries["opt/tool"].uid, entries["opt/tool"].modified_ns) == (1000, 0)
    assert (entries["opt/tool/sub/program"].mode, entries["opt/tool/sub/program"].uid) == (0o755, 1000)
    assert entries["opt/tool/outside"].target == "/etc/shadow"
    assert entries["bin/busybox"].uid == entries["opt"].uid == 0


def test_a_recipe_is_read_with_its_layers_and_stands_on_its_base(store: Store, tmp_path: Path) -> None:
    make_folder(tmp_path / "tools")
    (tmp_path / "recipe.toml").write_text(
        'name = "tools:1"\nbase = "tiny"\ncwd = "/opt"\nenv = { EDITOR = "vi" }\n'
        '[[layers]]\nfolder = "tools"\nat = "/opt/tools"\nkind = "toolkit"\n'
    )
    recipe = read_recipe(tmp_path / "recipe.toml")
    with pytest.raises(ImageError, match="no image 'tiny'"):
        build_image(store, recipe, tmp_path)
    build_image(store, Recipe(name="tiny"), tmp_path)
    built = build_image(store, recipe, tmp_path)
    assert built.image.config.cwd == "/opt"
    assert ("EDITOR", "vi") in built.image.config.env
    assert [store.layer(digest).kind for digest in built.image.layers] == ["base", "toolkit"]


def test_a_toolkit_is_stacked_by_name_without_the_base_that_it_was_made_on(store: Store, tmp_path: Path) -> None:
    make_folder(tmp_path / "tools")
    layer = FolderLayer(folder="tools", at="/opt/tools", kind="toolkit")
    built = build_image(store, Recipe(name="tools", layers=(layer,)), tmp_path)
    other = store.add_image([build_image(store, Recipe(name="x"), tmp_path).image.layers[0]], name="other")
    assert chosen_layers(store, "other", ["tools"]) == (*other.layers, built.image.layers[-1])
    assert chosen_layers(store, None, [built.image.layers[-1], "tools"]) == built.image.layers
    with pytest.raises(ImageError, match="there is no image"):
        chosen_layers(store, None, ["sha256:" + "0" * 64])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("base = 'x'", "has no name"),
        ("name = 'x'\nbas = 'y'", "has the field 'bas'; there are name, base"),
        ("name = 'x'\n[[layers]]\nfolder = 'f'\nkind = 'wrong'", "one of base, workspace"),
        ("name = 'x'\n[[layers]]\nfolder = 'f'\nat = 'opt'", "write a path from the root"),
        ("name = 'x'\nbase = 'y'\n[debian]\nsuite = 'bookworm'", "it stands on one"),
        ("name = 'x'\n[debian]\npackages = ['--setup-hook=x']", "is no name of a suite"),
        ("name = ", "cannot be read"),
        ("name = 'x'\n[[layers]]\nat = '/x'", "is not whole"),
        ("name = 'x'\nlayers = [3]", "should be a table"),
    ],
)
def test_a_wrong_recipe_is_refused_with_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(ImageError, match=says):
        read_recipe(tmp_path / "recipe.toml")


def stand_in(folder: Path, script: str) -> None:
    """An mmdebstrap that does something else."""
    folder.mkdir()
    (folder / "mmdebstrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "mmdebstrap").chmod(0o755)


def test_packages_become_a_base_with_the_user_and_the_folders_that_sandboxes_need(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        for name in ("./usr", "./usr/bin", "./etc"):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        link = tarfile.TarInfo("./bin")
        link.type, link.linkname = tarfile.SYMTYPE, "usr/bin"
        archive.addfile(link)
    stand_in(tmp_path / "bin", f'echo "$@" > {tmp_path}/arguments; cat {tmp_path}/root.tar')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    built = build_image(store, Recipe(name="debian", debian=Debian(packages=("git", "make"))), tmp_path)
    assert (tmp_path / "arguments").read_text() == (
        "--quiet --format=tar --variant=minbase --include=git,make bookworm -\n"
    )
    entries = seen(store, built.image.layers)
    assert entries["bin"].type == "link"
    assert entries["work"].uid == 1000
    assert {"proc", "sys", "dev", "tmp", "etc/passwd"} <= set(entries)


def test_a_failing_mmdebstrap_is_quoted_and_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path / "bin", "echo E: no network >&2; exit 25")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(ImageError, match="ended with 25: E: no network"):
        build_image(store, Recipe(name="debian", debian=Debian()), tmp_path)
    assert store.layers() == []


def test_the_verbs_build_list_export_import_check_remove_and_collect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder(tmp_path / "tool")
    image = ["sandbox", "image"]
    root = ["--root", str(tmp_path / "state")]
    assert run([*image, "build", str(folder), "--name", "tool:1", *root]) == 0
    assert run([*image, "export", "tool:1", str(tmp_path / "tool.tar"), *root]) == 0
    assert run([*image, "import", str(tmp_path / "tool.tar"), "--name", "again", *root]) == 0
    capsys.readouterr()
    assert run([*image, "ls", "--json", *root]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["name"] for record in listed] == ["again:latest", "tiny:latest", "tool:1"]
    assert listed[0]["id"] == listed[2]["id"]
    assert run([*image, "check", "tool:1", *root]) == 0
    assert run([*image, "rm", "tool:1", "again", *root]) == 0
    capsys.readouterr()
    assert run([*image, "gc", *root]) == 0
    assert capsys.readouterr().out.startswith("1 layers (0.0 MiB), 1 unnamed")
    assert run([*image, "rm", "tool:1", *root]) == 2
    assert "no image 'tool:1' to remove" in capsys.readouterr().err
    assert run([*image, "build", str(folder), *root]) == 2


def test_the_code_of_the_page_on_images_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).resolve().parents[2] / "docs/sandbox-images.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    (recipe,) = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, str(page), "exec"), {})
    Path("recipe.toml").write_text(recipe)
    assert read_recipe(Path("recipe.toml")).name == "tools:1"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="needs the Debian package mmdebstrap, and a network")
def test_a_debian_image_is_made_and_runs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    recipe = Recipe(name="debian", debian=Debian(packages=("python3-minimal",)))
    try:
        built = build_image(store, recipe, tmp_path)
    except ImageError as error:
        if "Could not resolve" in str(error) or "Unable to" in str(error):
            pytest.skip("no way to Debian's archive from here")
        raise
    entries = seen(store, built.image.layers)
    assert entries["usr/bin/python3"].type == "link"
    assert entries["usr/bin/su"].mode == 0o755
    assert all(store.check(digest) == [] for digest in built.image.layers)
