"""Which model is meant: a released name, the bundled model, or a checkpoint folder; config.json is all that is read."""

from dataclasses import dataclass
from pathlib import Path

from benthic.errors import ConfigError
from benthic.models.checkpoint.load import BUNDLED, nearest_name, resolve
from benthic.models.config import ModelConfig
from benthic.models.released import KNOWN, released_name

DENSE = ("deepseek-67b",)
"""Models of which only the published facts are known; they serve as the other side of a comparison."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model: its released name, or its folder as it was given."""

    name: str
    config: ModelConfig


def subject(name_or_path: str) -> Subject:
    """The model of that name or folder.

    Raises:
        ConfigError: there is none, or its config.json describes no model that can be built.
    """
    names = (*BUNDLED, *sorted(KNOWN), *DENSE)
    if not name_or_path:
        raise ConfigError(f"the model's name is empty; it must be a checkpoint folder or one of {', '.join(names)}")
    key = released_name(name_or_path)
    if key in KNOWN and not Path(name_or_path).exists():
        return Subject(key, KNOWN[key])
    if key in DENSE:
        raise ConfigError(
            f"the model is {name_or_path!r}, of which only published facts are known; it may stand behind --compare, "
            f"and models that can be planned are {', '.join(sorted(KNOWN))} or a checkpoint folder"
        )
    if name_or_path in BUNDLED or Path(name_or_path).exists():
        folder = resolve(name_or_path) if name_or_path in BUNDLED else Path(name_or_path)
        return Subject(name_or_path, ModelConfig.from_json(folder))
    raise ConfigError(
        f"there is no folder {name_or_path!r} and no model of that name; {nearest_name(key, names)}known: "
        f"{', '.join(names)}"
    )


def is_dense(name: str) -> bool:
    """Whether the name is one of `DENSE`."""
    return released_name(name) in DENSE
