"""What an engine says of its start: which of its features are on and why, what was warmed, how long it all took.

One list, made where the engine has been built and from what it really holds, so that no two places can disagree.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benthic.engine.config import EngineConfig
    from benthic.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Feature:
    """One thing that an engine does or does not do, and the reason."""

    name: str
    is_on: bool
    reason: str

    def line(self) -> str:
        """As a start-up summary prints it."""
        return f"{self.name:<18}{'on ' if self.is_on else 'off'}  {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """How a start went; empty where an engine was not built from a checkpoint."""

    device: str = ""
    features: tuple[Feature, ...] = ()
    warmed: tuple[str, ...] = ()
    """What ran before the engine said that it was ready; nothing is ready that is not among it."""
    weight_load_s: float = 0.0
    warm_up_s: float = 0.0


def features_of(model: "Transformer", config: "EngineConfig", overlap_steps: int) -> tuple[Feature, ...]:
    """The features of an engine over this model."""
    return (
        _prefix_cache(model, config),
        _drafts(model, config),
        _captured_passes(model, config),
        Feature("overlap", overlap_steps > 0, _overlap(overlap_steps)),
        Feature(
            "official cache", config.cache_storage == "official", f"engine.cache_storage is {config.cache_storage}"
        ),
        Feature("native weights", model.numerics.is_native, f"engine.weights is {config.weights}"),
        Feature("routes", config.keep_routes, f"engine.keep_routes is {_flag(config.keep_routes)}"),
        Feature("picks", config.keep_picks, f"engine.keep_picks is {_flag(config.keep_picks)}"),
    )


def _prefix_cache(model: "Transformer", config: "EngineConfig") -> Feature:
    if not config.prefix_cache:
        return Feature("prefix cache", False, "engine.prefix_cache is false: every prompt is computed whole")
    has_windows = bool(model.config.sliding_window)
    windows = f", windows kept by retention {config.retention}" if has_windows else ""
    return Feature("prefix cache", True, f"pages of {config.page_size} tokens{windows}")


def _drafts(model: "Transformer", config: "EngineConfig") -> Feature:
    num_blocks = len(model.mtp)
    if config.drafter == "none":
        there = f"; the checkpoint has {num_blocks} prediction block(s): --engine.drafter mtp" if num_blocks else ""
        return Feature("drafts", False, f"engine.drafter is none{there}")
    kind = f"by {num_blocks} prediction block(s)" if config.drafter == "mtp" else "by the text's own repetitions"
    return Feature("drafts", True, f"{kind}, at most {config.draft_len} tokens ahead")


def _captured_passes(model: "Transformer", config: "EngineConfig") -> Feature:
    if model.device.type != "cuda":
        return Feature("captured passes", False, f"the device is {model.device}; CUDA captures passes")
    return Feature("captured passes", config.cuda_graphs, f"engine.cuda_graphs is {_flag(config.cuda_graphs)}")


def _overlap(steps: int) -> str:
    return f"{steps} pass in flight while the next is planned" if steps else "a pass is taken in before the next begins"


def _flag(value: bool) -> str:
    return "true" if value else "false"
