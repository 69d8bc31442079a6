"""What is installed is what is declared: pins, reasons, package data, the command."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import benthic

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[ ]", requirement)[0].lower() for requirement in requirements}


PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text().lower(), re.MULTILINE))
NEEDED = names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["test"]) | {"setuptools"}


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_everything_that_continuous_integration_installs_is_pinned(name: str) -> None:
    spelled = {key.replace("_", "-"): version for key, version in PINNED.items()}
    assert spelled.get(name), f"{name} has no line in constraints.txt"


def test_torch_is_pinned_without_a_local_version_so_that_any_build_satisfies_it() -> None:
    assert PINNED["torch"] == "2.13.0"


def test_every_dependency_has_its_reason_in_the_readme() -> None:
    table = (ROOT / "README.md").read_text().split("| dependency | reason |")[1].split("\n\n")[0]
    listed = {name.strip() for row in re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE) for name in row.split(",")}
    assert listed - {"---"} == names(PROJECT["dependencies"])


def test_dependencies_have_lower_bounds_and_no_caps() -> None:
    assert [d for d in PROJECT["dependencies"] if not re.fullmatch(r"[\w-]+>=[\d.]+", d)] == []


def test_the_version_is_written_in_one_place() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", benthic.__version__)
    assert "version" in PROJECT["dynamic"]


def test_the_command_leads_to_a_module_of_the_package() -> None:
    module, _, function = PROJECT["scripts"]["benthic"].partition(":")
    assert function == "main"
    assert importlib.util.find_spec(module) is not None


def test_an_interpreter_that_is_missing_is_reported_in_words(tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "scripts" / "install.sh"), str(tmp_path / "venv"), ""]
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", "PYTHON": "/nowhere/python3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Benthic needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / "venv").exists()
