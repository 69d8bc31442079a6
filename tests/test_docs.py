"""The documents say what is so: the file tree, the links, the configurations, the decisions."""

import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from benthic.cache.work import Cut
from benthic.cli.command import app
from benthic.engine.config import EngineConfig
from benthic.server.config import ServerConfig
from benthic.shapes import LEGEND
from scripts.write_docs import ARCHITECTURE, CONFIGURATION, render_configuration, with_tree
from tests.test_architecture import MAY_IMPORT

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
DECISIONS = sorted((ROOT / "docs" / "adr").glob("0*.md"))


def test_the_file_tree_is_that_of_the_repository() -> None:
    text = ARCHITECTURE.read_text()
    assert with_tree(text) == text, "run `make docs`"


def test_the_configuration_page_is_that_of_the_dataclasses() -> None:
    assert CONFIGURATION.read_text() == render_configuration(), "run `make docs`"


def test_the_table_of_rooms_is_the_tested_one() -> None:
    rows = re.findall(
        r"^\| `?([\w.]+)/?`?(?: \(package root\))? \|.*\| ([^|]+) \|$", ARCHITECTURE.read_text(), re.MULTILINE
    )
    table = {
        room.removesuffix(".py"): set(allowed.replace("`", "").split(", ")) for room, allowed in rows if room != "room"
    }
    unbuilt = {"parallel", "rl"}
    assert table.pop("cli") == {"all", "lazily"}
    assert table == {
        room: set(allowed) - unbuilt
        for room, allowed in MAY_IMPORT.items()
        if room not in unbuilt | {"cli", "__main__"}
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert [page.name for page in DECISIONS if f"({page.name})" not in index] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_all_its_parts(page: Path) -> None:
    headings = re.findall(r"^## (.*)$", page.read_text(), re.MULTILINE)
    assert headings == ["Context", "Options", "Decision", "Consequences", "How we would know that it was wrong"]


@pytest.mark.parametrize("recipe", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.name)
def test_recipes_are_toml(recipe: Path) -> None:
    assert tomllib.loads(recipe.read_text())


def test_every_letter_of_the_legend_is_used() -> None:
    shapes = set()
    for path in (ROOT / "src").rglob("*.py"):
        for shape in re.findall(r"\[([\w*+/(), .]+)\]", path.read_text()):
            shapes.update(re.findall(r"[A-Za-z]", re.sub(r"[A-Za-z]{2,}", "", shape)))
    assert sorted(LEGEND.keys() - shapes) == []


def test_every_environment_variable_that_the_package_reads_is_in_the_table() -> None:
    table = (ROOT / "docs" / "environment.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    read = set(re.findall(r"environ(?:\.\w+\(|\[)\"(\w+)\"", source))
    assert "BENTHIC_API_KEY" in read
    assert [name for name in sorted(read) if f"`{name}`" not in table] == []


def test_every_page_that_a_docstring_cites_is_in_docs() -> None:
    cited = {
        name for path in (ROOT / "src").rglob("*.py") for name in re.findall(r"\b([a-z-]+\.md)\b", path.read_text())
    }
    assert {"model.md", "training.md"} <= cited
    assert [name for name in sorted(cited) if not list((ROOT / "docs").rglob(name))] == []


def test_every_file_that_a_command_of_the_readme_names_exists() -> None:
    commands = re.findall(r"`(?:python|pytest|benthic train) ([\w/.-]+)", (ROOT / "README.md").read_text())
    assert len(commands) >= 3
    assert [name for name in commands if not (ROOT / name).exists()] == []


def test_the_table_of_cuts_lists_what_a_report_can_say() -> None:
    page = (ROOT / "docs" / "engine.md").read_text()
    table = page.partition("| `cut` |")[2].partition("\n\n")[0]
    listed = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert sorted(listed) == sorted(get_args(Cut))


def option_names(command: Any) -> set[str]:
    """Options of a command and of everything below it."""
    own = {name for item in command.params for name in (*item.opts, *item.secondary_opts)}
    return own.union(*(option_names(inner) for inner in getattr(command, "commands", {}).values()))


def test_every_option_that_a_page_gives_a_command_exists() -> None:
    command = typer.main.get_command(app)
    verbs = command.commands  # type: ignore[attr-defined]
    options = {group: option_names(verbs.pop(group)) for group in ("bench", "sandbox")}
    options |= {
        verb: {name for item in inner.params for name in (*item.opts, *item.secondary_opts)}
        for verb, inner in verbs.items()
    }
    every = set().union(*options.values()) | {"--help", "--debug", "--version"}
    for page in PAGES:
        text = page.read_text()
        for verb, words in re.findall(r"`?benthic (\w+)([^`\n#|]*)", text):
            for name in re.findall(r"(?<!\S)(--[a-z][a-z-]*)(?![\w.-])", words):
                assert name in options.get(verb, every), f"{page.name}: benthic {verb} has no {name}"
    serving = (ROOT / "docs" / "serving.md").read_text()
    for name in re.findall(r"`(--[a-z][a-z-]*)(?![\w.-])[^`]*`", serving):
        assert name in options["serve"], f"serving.md: {name}"


def test_every_field_of_a_server_that_a_page_names_exists() -> None:
    known = {f"server.{field.name}" for field in fields(ServerConfig)} | {
        f"engine.{field.name}" for field in fields(EngineConfig)
    }
    for page in PAGES:
        for name in re.findall(r"(?:`|--)((?:server|engine)\.[a-z_-]+)(?![\w./(])", page.read_text()):
            assert name.replace("-", "_") in known, f"{page.name}: {name}"
