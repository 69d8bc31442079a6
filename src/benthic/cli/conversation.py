"""What has been said in `benthic chat`, and how it shall go on: turns, instructions, fields of the requests."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benthic.errors import ConfigError


@dataclass
class Conversation:
    """One conversation; it can be written to a file and taken up again.

    `turns` alternate: user, assistant. `fields` go with every request.
    """

    system: str | None = None
    thinking: bool | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        """The chat body that asks for the next turn."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"messages": [*opening, *self.turns], **self.fields}
        if self.thinking is not None:
            body["thinking"] = {"type": "enabled" if self.thinking else "disabled"}
        return body

    def take_back(self) -> str | None:
        """Forget the last answer and its question; returns the question, None if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return str(turn["content"])
        return None

    def save(self, path: Path) -> None:
        """Write it as JSON, the messages in the form of a chat request."""
        whole = {"messages": self.body()["messages"], "fields": self.fields, "thinking": self.thinking}
        path.write_text(json.dumps(whole, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Conversation":
        """Read what `save` wrote, or any chat body.

        Raises:
            ConfigError: it is no such file.
        """
        try:
            whole = json.loads(path.read_text(encoding="utf-8"))
            messages = [{"role": str(m["role"]), **m} for m in whole["messages"]]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f'{path} is no conversation ({error!r}); it must be JSON with "messages"') from None
        has_system = bool(messages) and messages[0]["role"] == "system"
        return cls(
            system=messages[0].get("content") if has_system else None,
            thinking=whole.get("thinking") if isinstance(whole.get("thinking"), bool) else None,
            fields=dict(whole.get("fields") or {}),
            turns=messages[has_system:],
        )
