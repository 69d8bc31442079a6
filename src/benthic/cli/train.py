"""`benthic train`: run a training recipe."""

from benthic.errors import ConfigError


def train() -> None:
    """Train a model from a recipe."""
    raise ConfigError("train has no recipes yet in this version")
