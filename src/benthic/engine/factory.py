"""How a child process finds the function that makes its engine. A test names one that needs no model."""

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
    module, _, name = spec.factory.partition(":")
    built = getattr(import_module(module), name)(spec)
    assert isinstance(built, BuiltEngine), f"{spec.factory} returned a {type(built).__name__}"
    return built
