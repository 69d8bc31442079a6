"""How a child process finds the function that makes its engine. A test names one that needs no model."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benthic.engine.control import StepEngine
from benthic.engine.messages import EngineFacts, EngineSpec


@dataclass(frozen=True, slots=True)
class BuiltEngine:
    """An engine and what it says of itself."""

    engine: StepEngine
    facts: EngineFacts


def build(spec: EngineSpec) -> BuiltEngine:
    """Calls the function that `spec.factory` names."""
    built = _named(spec.factory)(spec)
    assert isinstance(built, BuiltEngine), f"{spec.factory} returned a {type(built).__name__}"
    return built


def build_ahead(spec: EngineSpec) -> BuiltEngine | None:
    """Calls the function that `spec.ahead` names."""
    assert spec.ahead is not None
    built = _named(spec.ahead)(spec)
    assert built is None or isinstance(built, BuiltEngine), f"{spec.ahead} returned a {type(built).__name__}"
    return built


def _named(name: str) -> Callable[[EngineSpec], object]:
    module, _, function = name.partition(":")
    found: Callable[[EngineSpec], object] = getattr(import_module(module), function)
    return found
