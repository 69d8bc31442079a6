"""What a sandbox's home folder says of its resources, written before each one is made.

Whatever a crash leaves behind can so be found again and taken over or swept away. `state.json` is replaced whole: a
reader sees the old or the new one.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benthic.sandbox.linux.processes import ProcessId


def root_tag(state_root: Path) -> str:
    """Eight hex digits that mark what belongs to one state root, so that hosts on one machine sweep only their own."""
    return hashlib.sha256(str(state_root.resolve()).encode()).hexdigest()[:8]


def group_name(home: Path) -> str:
    """The control group of a sandbox whose home is `<state root>/homes/<id>`."""
    return f"{root_tag(home.resolve().parent.parent)}/{home.name}"


@dataclass(frozen=True, slots=True)
class HomeState:
    """The file `state.json` of one home."""

    home: Path

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.home / "state.json"

    def load(self) -> dict[str, Any]:
        """All fields; empty where nothing was written yet or the home is gone."""
        try:
            fields = json.loads(self.path.read_bytes())
        except (OSError, ValueError):
            return {}
        return fields if isinstance(fields, dict) else {}

    def living(self, driver: str) -> tuple[dict[str, Any], ProcessId] | None:
        """All fields and the process of a sandbox that a driver of this name made, if it still lives."""
        fields = self.load()
        if fields.get("driver") != driver or "pid" not in fields:
            return None
        process = ProcessId(fields["pid"], fields["start_ticks"])
        return (fields, process) if process.is_alive() else None

    def record(self, **fields: Any) -> None:
        """Adds fields; call it before making what they name. None removes one.

        This outlives every process but need not outlive the machine, with which all that it names would end.
        """
        merged = {name: value for name, value in (self.load() | fields).items() if value is not None}
        draft = self.path.with_suffix(".new")
        draft.write_text(json.dumps(merged, indent=1))
        draft.replace(self.path)
