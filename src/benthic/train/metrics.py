"""The metrics of a run: one JSON object a line, flushed as written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends lines to a file. Opened at `step`, it first drops lines of later steps, which will be made again."""

    def __init__(self, path: Path, step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _keep_before(path, step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any]) -> None:
        """One line; `values` holds `step`."""
        self._file.write(json.dumps(dict(values)) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines; a last line that a killed run left torn is skipped."""
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1]]


def _keep_before(path: Path, step: int) -> None:
    kept = [line for line in read_metrics(path) if int(line["step"]) < step]
    fresh = path.with_suffix(".tmp")
    fresh.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    os.replace(fresh, path)
