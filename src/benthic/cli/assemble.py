"""Model, engine and service put together for the verbs that answer. Torch comes in when a function here runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benthic.cli.compiling import compilation_notice
from benthic.engine.config import EngineConfig
from benthic.errors import ConfigError
from benthic.server.config import ServerConfig

if TYPE_CHECKING:
    from benthic.models.numerics import Policy
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
    """Load a checkpoint and build its service.

    Raises:
        ConfigError: an option is wrong.
        CheckpointError: the checkpoint cannot be loaded.
    """
    from benthic.engine.cpu import prepare_products
    from benthic.engine.engine import Engine
    from benthic.engine.scoring import prompt_logprobs
    from benthic.models.checkpoint.load import load_model, resolve
    from benthic.models.checkpoint.placement import chosen_device, chosen_dtype
    from benthic.server.build import build_service, warm_up

    config = engine or EngineConfig()
    place, dtype, policy = chosen_device(choice.device), chosen_dtype(choice.dtype), _policy(choice.numerics)
    prepare_products(config.num_threads)
    folder = resolve(choice.model)
    with compilation_notice():
        model = load_model(folder, device=place, dtype=dtype, numerics=policy).freeze()
        running = Engine(model, config)
        warm_up(running)
    return build_service(
        running,
        folder,
        name=folder.resolve().name if Path(choice.model).exists() else choice.model,
        config=server or ServerConfig(),
        score=lambda ids, num_alternatives: prompt_logprobs(model, ids, num_alternatives),
    )


def open_local(choice: ModelChoice, *, engine: EngineConfig | None = None) -> "LocalService":
    """A running service in this process, without HTTP."""
    from benthic.server.local import LocalService

    return LocalService(open_service(choice, engine=engine))


def _policy(name: str | None) -> "Policy | None":
    policies: dict[str, Policy] = {"plain": "plain", "quantized": "quantized"}
    return _chosen("numerics", name, policies)


def _chosen(option: str, value: str | None, known: Mapping[str, _T]) -> _T | None:
    if value is not None and value not in known:
        raise ConfigError(f"{option} is {value!r}; it must be one of {', '.join(known)}")
    return None if value is None else known[value]
