"""`benthic eval`: accuracy on held-out prompts."""

from benthic.errors import ConfigError


def evaluate() -> None:
    """Measure a model on held-out prompts."""
    raise ConfigError("eval has no tasks yet in this version")
