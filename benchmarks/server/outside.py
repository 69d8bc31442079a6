"""Programs of others that speak to a server: where they are, and a `benthic serve` for them to speak to.

They bring a hundred packages each, so they live in environments of their own, and are found by a variable or on PATH.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import benthic

PACKAGE = Path(benthic.__file__).parent
MODEL = PACKAGE / "assets" / "tiny"
"""The bundled model's folder: its tokenizer is the one that clients count with."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def find_program(variable: str, name: str) -> str | None:
    """The path in an environment variable, or what PATH has under a name; None where there is neither."""
    return os.environ.get(variable) or shutil.which(name)


class Served(NamedTuple):
    """A running `benthic serve`."""

    url: str
    pid: int


@contextmanager
def serving(*options: str) -> Iterator[Served]:
    """A `benthic serve` over the bundled model, which ends with the block."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "benthic", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        found = (re.search(r"http://[\d.]+:\d+", line) for line in process.stdout)
        yield Served(next(match.group() for match in found if match), process.pid)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
