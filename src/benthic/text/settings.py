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
- A config.json of an earlier family (deepseek_v2, deepseek_v3, deepseek_v32) means "template": prompts are written by
  `chat_template`, the Jinja text of `chat_template.jinja` or tokenizer_config.json (see `chat_template.py`), and
  thinking is off where it is not asked for. Without a template there is no chat; V3.2's is built in.
- `default_thinking` is the mode of a request that does not choose one (the family's own default is true).
- `default_temperature` and `default_top_p` hold for requests that do not set them.
"""

import json
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from benthic.errors import ConfigError
from benthic.text.template_v32 import V32_TEMPLATE

Dialect = Literal["2026-04", "recipe", "template"]

SETTINGS_FILE = "benthic.json"
_BUILT_IN = {"deepseek_v32": V32_TEMPLATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """Prompt facts of a checkpoint. The defaults are those of the April releases."""

    prompt_dialect: Dialect = "2026-04"
    """Which effort adds which text; "template" for checkpoints with a chat template of their own."""
    chat_template: str = ""
    """Jinja text of the "template" dialect; empty: there is no chat."""
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
        if not isinstance(self.chat_template, str):
            raise ConfigError(f"chat_template is {self.chat_template!r}; it must be a string, the text of a template")
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
    config = _read_object(folder / "config.json")
    settings = {"prompt_dialect": _dialect_of(config), **settings}
    if settings["prompt_dialect"] == "template":
        template = _read_template(folder) or _BUILT_IN.get(str(config.get("model_type")), "")
        settings = {"chat_template": template, "default_thinking": False, **settings}
    return PromptSettings(**settings)


def _dialect_of(config: dict[str, Any]) -> Dialect:
    if config.get("model_type", "deepseek_v4") != "deepseek_v4":
        return "template"
    return "recipe" if config.get("dspark_block_size") is not None else "2026-04"


def _read_template(folder: Path) -> str:
    """The template of a folder, in either of its places; empty where it has none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    given = _read_object(folder / "tokenizer_config.json").get("chat_template") or ""
    if isinstance(given, list):  # several by name
        given = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}.get("default")
    if not isinstance(given, str):
        raise ConfigError(
            f"{folder / 'tokenizer_config.json'}: chat_template is {type(given).__name__}; it must be a string, or a "
            'list of objects of which one has the name "default"'
        )
    return given


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
