"""How one checkpoint wants its prompts: facts of its training that config.json has no word for.

They stand in `benthic.json` beside `config.json`, all optional:

    {"prompt_dialect": "2026-04", "default_thinking": false, "default_temperature": 0.0, "default_top_p": 1.0}

- `prompt_dialect` says which reasoning effort adds a text to the prompt (model.md 6.2 and 6.6):

      effort      "2026-04" (April preview)   "recipe" (refreshed releases)
      low         -                           -
      high, none  -                           "Absolute maximum ..."
      max         "Absolute maximum ..."      "Beyond maximum ..."

  Where the file does not say, a `dspark_block_size` in config.json (only the refreshed releases have one) means
  "recipe", and everything else means "2026-04". A model that never saw the texts wants "2026-04": only an explicit
  effort of "max" then adds one.
- `default_thinking` is the mode of a request that does not choose one (the family's own default is true).
- `default_temperature` and `default_top_p` hold for requests that do not set them.
"""

import json
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from benthic.errors import ConfigError

Dialect = Literal["2026-04", "recipe"]

SETTINGS_FILE = "benthic.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """Prompt facts of a checkpoint. The defaults are those of the April releases."""

    prompt_dialect: Dialect = "2026-04"
    """Which effort adds which text."""
    default_thinking: bool = True
    """Mode of a request that does not choose one."""
    default_temperature: float | None = None
    """In [0, 2]; None leaves the official value, 1.0."""
    default_top_p: float | None = None
    """In (0, 1]; None leaves the official value: 1.0, or 0.95 when thinking with tools."""

    def __post_init__(self) -> None:
        if self.prompt_dialect not in get_args(Dialect):
            raise ConfigError(
                f"prompt_dialect is {self.prompt_dialect!r}; it must be one of {_names(get_args(Dialect))}"
            )
        if not isinstance(self.default_thinking, bool):
            raise ConfigError(f"default_thinking is {self.default_thinking!r}; it must be true or false")
        _check_number("default_temperature", self.default_temperature, 0.0, 2.0)
        _check_number("default_top_p", self.default_top_p, 0.0, 1.0)
        if self.default_top_p == 0:
            raise ConfigError("default_top_p is 0; it must be in (0, 1]")


def read_prompt_settings(folder: str | Path) -> PromptSettings:
    """The settings of a checkpoint folder; defaults where it says nothing.

    Raises:
        ConfigError: a file is not a JSON object, or `benthic.json` has an unknown or bad field.
    """
    folder = Path(folder)
    settings = _read_object(folder / SETTINGS_FILE)
    known = [field.name for field in fields(PromptSettings)]
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known fields: {_names(known)}"
            raise ConfigError(f"{folder / SETTINGS_FILE} has the unknown field {name!r}{hint}")
    if "prompt_dialect" not in settings and _read_object(folder / "config.json").get("dspark_block_size") is not None:
        settings["prompt_dialect"] = "recipe"
    return PromptSettings(**settings)


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds {type(value).__name__}; it must be a JSON object")
    return value


def _check_number(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}; it must be a number in [{low}, {high}]")


def _names(names: Any) -> str:
    return ", ".join(map(repr, names))
