"""The libraries that Benthic stands on: there, importable, and not older than what it was written against."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

from benthic.doctor.finding import Finding

_MODULES = {"deepseek-recipe": "deepseek_recipe", "prometheus-client": "prometheus_client"}
"""Where the module's name is not the package's."""
_PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


class Requirement(NamedTuple):
    """A package and the least version of it."""

    name: str
    least: str


def library_findings() -> list[Finding]:
    """One finding for each library that is not as it should be, or a single one that all are."""
    needed = list(requirements())
    if not needed:
        return [
            Finding("libraries", "limit", "Benthic is not installed as a package", "pip install . in its repository")
        ]
    wrong = [found for requirement in needed if (found := check(requirement)).verdict != "ok"]
    return wrong or [Finding("libraries", "ok", ", ".join(f"{name} {version(name)}" for name, _ in needed))]


def requirements() -> Iterator[Requirement]:
    """What Benthic itself asks for: in its package's data, or in the file beside a source tree."""
    try:
        lines = requires("benthic") or []
    except PackageNotFoundError:
        project: Mapping[str, object] = {}
        if _PYPROJECT.exists():
            project = tomllib.loads(_PYPROJECT.read_text())["project"]
        found = project.get("dependencies", [])
        lines = found if isinstance(found, list) else []
    for line in lines:
        match = re.match(r"([A-Za-z0-9_.-]+)\s*>=\s*([\d.]+)\s*(;.*extra.*)?$", line)
        if match and not match[3]:
            yield Requirement(match[1], match[2])


def check(requirement: Requirement) -> Finding:
    """One library."""
    name, least = requirement
    install = f"pip install '{name}>={least}'"
    try:
        found = version(name)
        import_module(_MODULES.get(name, name))
    except PackageNotFoundError:
        return Finding(name, "broken", "not installed", install)
    except Exception as error:  # noqa: BLE001 - whatever a library's import does, the other checks go on
        return Finding(name, "broken", f"cannot be imported: {type(error).__name__}: {error}", f"{install}, or mend it")
    if _numbers(found) < _numbers(least):
        return Finding(name, "limit", f"{found} is older than {least}", install)
    return Finding(name, "ok", found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])
