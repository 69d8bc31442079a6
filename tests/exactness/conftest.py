"""The small random model of the engine's tests."""

from tests.engine.conftest import own_model, small_model

__all__ = ["own_model", "small_model"]
