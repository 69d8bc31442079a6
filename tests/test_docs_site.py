"""The documentation as a site: it builds without a warning, its menu has every page, its fields are the code's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benthic.text.placement import known_fields

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LETTERS = {"C": "chat", "R": "responses", "M": "messages", "T": "completions"}


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the Python package mkdocs is not installed")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "explain" / "page-trie.html").read_text()
    assert "figures/explain/trie.svg" in page
    outside = re.findall(r'(?:src|<link[^>]* href)="(https?://[^"]+)"', page)
    assert outside == [], "the site must work without the internet"


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "adr"}
    assert [name for name in sorted(pages) if f": {name}\n" not in menu] == []


def test_the_fields_are_those_that_each_endpoint_knows() -> None:
    told: dict[str, set[str]] = {letter: set() for letter in LETTERS}
    for names, letters in re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \| ([CRMT ]+) \|", (DOCS / "fields.md").read_text(), re.M
    ):
        for letter in letters.split():
            told[letter] |= set(re.findall(r"`(\w+)`", names))
    for letter, endpoint in LETTERS.items():
        assert sorted(known_fields(endpoint) - told[letter]) == [], f"fields of {endpoint} that the page does not tell"


def test_fields_that_a_page_tells_of_are_known_somewhere() -> None:
    known = frozenset.union(*(known_fields(endpoint) for endpoint in LETTERS.values()))
    told = set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", (DOCS / "fields.md").read_text(), re.M))
    names = {name for row in told for name in re.findall(r"`(\w+)`", row)}
    assert sorted(names - known) == []
