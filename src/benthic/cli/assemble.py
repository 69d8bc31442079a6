"""Model, engine and service put together for the verbs that answer. Torch comes in when a function here runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from benthic.engine.config import EngineConfig
from benthic.errors import ConfigError
from benthic.server.config import ServerConfig

if TYPE_CHECKING:
    from benthic.engine.handle import EngineHandle
    from benthic.engine.messages import EngineFacts, EngineSpec
    from benthic.server.local import LocalService
    from benthic.server.service import Service

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model, where and how; None leaves a choice to the machine and the checkpoint."""

    model: str
    device: str | None = None
    dtype: str | None = None
    numerics: str | None = None


def open_service(
    choice: ModelChoice, *, server: ServerConfig | None = None, engine: EngineConfig | None = None
) -> "Service":
    """Load a checkpoint, in a process of its own unless `server` says otherwise, and build its service.

    Raises:
        ConfigError: an option is wrong.
        CheckpointError: the checkpoint cannot be loaded.
        EngineError: the engine's process died while it loaded.
    """
    from benthic.engine.messages import EngineSpec
    from benthic.server.build import build_service
    from benthic.text.grammar_masks import grammar_masks

    config = server or ServerConfig()
    spec = EngineSpec(
        model=choice.model,
        device=choice.device,
        dtype=choice.dtype,
        numerics=_policy(choice.numerics),
        engine=engine or EngineConfig(),
        log_format=None if server is None else server.log_format,
        ahead="benthic.engine.build:build_small_engine" if config.standby else None,
        masks=grammar_masks,
    )
    handle, facts = _in_thread(spec) if config.engine_in_process else _in_child(spec)
    folder = Path(facts.folder)
    name = folder.resolve().name if Path(choice.model).exists() else choice.model
    try:
        return build_service(handle, facts, folder, name=name, config=config)
    except BaseException:
        handle.close()
        raise


def open_local(choice: ModelChoice, *, engine: EngineConfig | None = None) -> "LocalService":
    """A running service in this process, without HTTP."""
    from benthic.server.local import LocalService

    return LocalService(open_service(choice, server=ServerConfig(engine_in_process=True), engine=engine))


def _in_thread(spec: "EngineSpec") -> "tuple[EngineHandle, EngineFacts]":
    from benthic.engine.build import build_engine
    from benthic.engine.worker import EngineWorker

    built = build_engine(spec)
    return EngineWorker(built.engine, stall_timeout_s=spec.engine.stall_timeout_s), built.facts


def _in_child(spec: "EngineSpec") -> "tuple[EngineHandle, EngineFacts]":
    from benthic.engine.process import EngineProcess

    engine = EngineProcess(spec)
    engine.start()
    try:
        return engine, engine.wait_ready()
    except BaseException:  # an interrupt while it loads, too, must not leave a child behind
        engine.close(timeout_s=0)
        raise


def _policy(name: str | None) -> Literal["plain", "quantized"] | None:
    policies: dict[str, Literal["plain", "quantized"]] = {"plain": "plain", "quantized": "quantized"}
    return _chosen("numerics", name, policies)


def _chosen(option: str, value: str | None, known: Mapping[str, _T]) -> _T | None:
    if value is not None and value not in known:
        raise ConfigError(f"{option} is {value!r}; it must be one of {', '.join(known)}")
    return None if value is None else known[value]
