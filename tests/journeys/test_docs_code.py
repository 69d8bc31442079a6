"""Code in the documentation runs as it stands: Python in one namespace a page, shell commands one after the other.

Blocks are ```python and ```sh. They run in an empty folder; `localhost:8000` is a server of the bundled model, and
`benthic` this package's command. What is not to be run (installing, serving for ever) is ```console.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journeys.test_serve import PACKAGE, WEIGHTS, serving
from tests.sandbox.kinds import require_kind

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = {
    str(page.relative_to(DOCS)): blocks
    for page in sorted(DOCS.rglob("*.md"))
    if (blocks := [found for found in BLOCK.findall(page.read_text()) if found[0] in ("python", "sh")])
}
pytestmark = pytest.mark.skipif(not WEIGHTS, reason="the bundled model has no weights in this tree")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving() as server:
        yield server.url.removeprefix("http://").removesuffix("/v1")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which `benthic` is this package."""
    command = tmp_path / "bin" / "benthic"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m benthic "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(PACKAGE.parent), "COLUMNS": "120"}


def test_pages_for_newcomers_have_code_to_run() -> None:
    assert {"quickstart.md", "request.md", "explain/exactness.md", "explain/page-trie.md"} <= PAGES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page_runs(
    name: str,
    request: pytest.FixtureRequest,
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if name.startswith("sandbox"):
        require_kind("function")
        monkeypatch.setenv("HOME", str(tmp_path))  # where sandboxes keep their state
    namespace: dict[str, object] = {"__name__": "docs"}
    for number, (language, code) in enumerate(PAGES[name]):
        if "localhost:8000" in code:
            code = code.replace("localhost:8000", request.getfixturevalue("address"))
        if language == "python":
            exec(compile(code, f"{name}, block {number}", "exec"), namespace)
        elif "curl " in code and shutil.which("curl") is None:
            pytest.skip("curl is not installed")
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", code], env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
            assert '"error"' not in done.stdout, done.stdout
