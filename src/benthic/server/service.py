"""What every endpoint needs of one served model, in one frozen record."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from benthic.engine.messages import EngineFacts
from benthic.engine.request import FinalOutput, Request, TokenLogprobs
from benthic.engine.sampling import SamplingParams
from benthic.errors import PromptTooLong, RequestError, UnknownModel
from benthic.server.channel import Channel
from benthic.server.config import ServerConfig
from benthic.server.fields import Fields
from benthic.server.intake import Intake
from benthic.server.metrics import Metrics
from benthic.server.text_choice import check_finished
from benthic.text.grammar_service import GrammarService
from benthic.text.prompt import PromptEncoder
from benthic.text.sampling_fields import Wishes
from benthic.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One model behind HTTP."""

    config: ServerConfig
    name: str
    created: int
    """Unix time at which the model was loaded."""
    facts: EngineFacts
    """What the engine said of itself when it was ready."""
    tokenizer: Tokenizer
    prompts: PromptEncoder
    grammars: GrammarService
    channel: Channel
    metrics: Metrics
    intake: Intake

    @property
    def context_len(self) -> int:
        """Prompt and answer together have at most this many tokens."""
        return self.facts.max_model_len

    def model_card(self) -> dict[str, Any]:
        """The model as /v1/models lists it, with what OpenAI's clients read and what Anthropic's do."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "benthic",
            "max_model_len": self.context_len,
            "type": "model",
            "display_name": self.name,
            "created_at": datetime.fromtimestamp(self.created, UTC).isoformat().replace("+00:00", "Z"),
        }

    def check_model(self, model: str | None) -> None:
        """A request without a model means the served one.

        Raises:
            UnknownModel: another model is meant.
        """
        if model is not None and model != self.name:
            raise UnknownModel(f"model is {model[:200]!r}; it must be {self.name!r}", param="model")

    def encode(self, prompt: str) -> list[int]:
        """Token ids of a text to continue.

        Raises:
            PromptTooLong: it is too long for the context, however it is tokenised; that is not tried then.
        """
        least = self.tokenizer.least_tokens(prompt)
        if least > self.context_len:
            raise PromptTooLong(
                f"the prompt has at least {least} tokens; the context holds at most {self.context_len}", param="prompt"
            )
        return self.tokenizer.encode(prompt)

    def room(self, prompt_len: int, max_tokens: int | None) -> int:
        """How many tokens may follow the prompt within the context; with `max_tokens` 0 none need to.

        Raises:
            PromptTooLong: the prompt leaves no room for a token, or not for the `max_tokens` asked for.
        """
        left = self.context_len - prompt_len
        if max_tokens == 0 and left < 0:
            raise PromptTooLong(
                f"the prompt has {prompt_len} tokens; the context holds at most {self.context_len}", param="prompt"
            )
        if max_tokens != 0 and left < 1:
            raise PromptTooLong(
                f"the prompt has {prompt_len} tokens; the context of {self.context_len} must hold it and at least one "
                "token more",
                param="prompt",
            )
        if max_tokens is not None and max_tokens > left:
            raise PromptTooLong(
                f"max_tokens is {max_tokens} and the prompt has {prompt_len} tokens; with a context of "
                f"{self.context_len}, max_tokens must be at most {left}",
                param="max_tokens",
            )
        return left

    def check_wishes(self, wishes: Wishes) -> None:
        """Refuse what this engine does not keep.

        Raises:
            RequestError: routes or picks are asked for and not kept.
        """
        config = self.facts.config
        for name, wanted, kind, kept in (
            ("return_routed_experts", wishes.return_routed_experts, "routes", config.keep_routes),
            ("return_picks", wishes.return_picks, "picks", config.keep_picks),
        ):
            if wanted and not kept:
                raise RequestError(
                    f"{name} is true; it must be false or absent: this engine keeps no {kind} "
                    f"(start it with --engine.keep_{kind} true)",
                    param=name,
                )

    async def score(
        self, ids: Sequence[int], num_alternatives: int, wishes: Wishes | None = None
    ) -> list[TokenLogprobs | None]:
        """Log-probabilities of given ids with so many alternatives; None for the first id, which nothing precedes.

        To be called within `channel.admitted`.

        Raises:
            ApiError: the engine is full, or failed.
        """
        params = SamplingParams(max_tokens=0, prompt_logprobs=num_alternatives)
        wishes = wishes or Wishes()
        request = Request(
            request_id=new_id("score"),
            prompt_ids=tuple(ids),
            params=params,
            priority=wishes.priority,
            cache_salt=wishes.cache_salt,
            timeout_s=wishes.timeout_s,
        )
        generation = self.channel.open([request], is_admitted=True)
        try:
            while not generation.is_done:
                for _, event in await generation.next_events(self.config.keep_alive_s):
                    if isinstance(event, FinalOutput):
                        check_finished(event)
                        return [None, *(event.prompt_logprobs or ())]
        finally:
            generation.close()
        raise AssertionError("a generation ended without a final output")

    def count_unknown(self, fields: Fields) -> None:
        """Count the request's fields that nothing has read.

        Raises:
            RequestError: there are some and the server is strict.
        """
        unknown = fields.unread()
        if unknown and self.config.strict_fields:
            raise RequestError(f"unknown field {unknown[0]!r}; leave it out", param=unknown[0])
        self.metrics.unknown_fields.inc(len(unknown))


def new_id(prefix: str, separator: str = "-") -> str:
    """A fresh identifier such as chatcmpl-0f3a..."""
    return f"{prefix}{separator}{secrets.token_hex(12)}"
