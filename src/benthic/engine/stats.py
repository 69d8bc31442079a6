"""The engine's figures at a step boundary, for health checks and metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges (waiting, running, pages, windows, weight version) and counters since the start (the rest)."""

    num_waiting: int = 0
    num_running: int = 0
    num_steps: int = 0
    num_replayed_steps: int = 0
    """Of these, passes that were captured before; the others were launched piece by piece."""
    was_replayed: bool = False
    """Whether the latest pass was one of these."""
    num_finished: int = 0
    num_timeouts: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed because they were found in the cache."""
    num_replayed_tokens: int = 0
    num_generated_tokens: int = 0
    num_retractions: int = 0
    num_verified: int = 0
    """Verifications: rows of one request that held drafts."""
    num_drafted: int = 0
    num_accepted: int = 0
    used_pages: int = 0
    """Held by live requests."""
    cached_pages: int = 0
    """Held by nobody and kept for later prompts; taken when they are needed."""
    total_pages: int = 0
    used_windows: int = 0
    cached_windows: int = 0
    total_windows: int = 0
    num_evicted_pages: int = 0
    num_evicted_windows: int = 0
    weight_version: int = 0
    is_paused: bool = False
    """Whether no token is computed until somebody ends the pause."""
    needs_weights: bool = False
    """Whether the weights were lost: nothing is computed until an update brings new ones."""

    @property
    def mean_accepted_len(self) -> float:
        """Tokens that a request got from a pass that gave it any: 1 without drafts."""
        return self.num_generated_tokens / max(1, self.num_generated_tokens - self.num_accepted)
