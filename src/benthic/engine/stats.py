"""The engine's figures at a step boundary, for health checks and metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges (waiting, running, used and total blocks) and counters since the start (the rest)."""

    num_waiting: int = 0
    num_running: int = 0
    num_finished: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_retractions: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
