"""Token counts in the shape that OpenAI and DeepSeek clients read."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Usage:
    """Tokens of one HTTP request: prompts counted once, completions summed over choices."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    drafted_tokens: int = 0
    """Guessed ahead and verified, beside the completion."""
    accepted_tokens: int = 0
    """Of the completion, so many were guessed right."""

    def to_json(self) -> dict[str, Any]:
        """The `usage` object."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "prompt_cache_hit_tokens": self.cached_tokens,
            "prompt_cache_miss_tokens": self.prompt_tokens - self.cached_tokens,
        }
        details = {} if self.reasoning_tokens is None else {"reasoning_tokens": self.reasoning_tokens}
        if self.drafted_tokens:
            details["accepted_prediction_tokens"] = self.accepted_tokens
            details["rejected_prediction_tokens"] = self.drafted_tokens - self.accepted_tokens
        return {**usage, "completion_tokens_details": details} if details else usage
