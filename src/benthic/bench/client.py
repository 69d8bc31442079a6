"""The side of the user: one completion over HTTP, timed piece by piece."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benthic.bench.http_stream import Address, get_json, stream_events
from benthic.errors import BenchError

_DONE = "[DONE]"


@dataclass(slots=True)
class Reply:
    """What came back, and when; times of a monotonic clock in seconds."""

    times_s: list[float] = field(default_factory=list)
    """When each piece of the answer arrived."""
    token_ids: list[int] | None = None
    """The generated tokens; None where the server does not say."""
    output_len: int = 0
    cached_len: int = 0
    accepted_len: int | None = None
    finish_reason: str | None = None
    error: str | None = None


class Client(Protocol):
    """Whatever completes a prompt of ids."""

    async def complete(self, prompt_ids: Sequence[int], output_len: int) -> Reply:
        """Never raises for a refused or broken request: the reply says so."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model behind a server."""

    name: str
    context_len: int
    vocab_size: int


class HttpClient:
    """Completions of one server (`POST /v1/completions` with token ids, streamed).

    Args:
        url: the server's base URL.
        api_key: sent as a bearer token where given.
        sampling: further fields of each body, such as temperature.
    """

    def __init__(self, url: str, *, api_key: str | None = None, sampling: Mapping[str, Any] | None = None) -> None:
        self._address = Address.of(url)
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._sampling = dict(sampling or {})

    async def describe(self) -> ServedModel:
        """What the server serves.

        Raises:
            BenchError: it does not answer, or not as Benthic does.
        """
        listing = await get_json(self._address, "/v1/models", self._headers)
        vocabulary = await get_json(self._address, "/tokenizer_info", self._headers)
        try:
            card = listing["data"][0]
            return ServedModel(card["id"], card["max_model_len"], vocabulary["vocab_size"])
        except (KeyError, IndexError, TypeError) as error:
            raise BenchError(f"/v1/models and /tokenizer_info lack {error}; they must be those of Benthic") from error

    async def complete(self, prompt_ids: Sequence[int], output_len: int) -> Reply:
        """Exactly `output_len` tokens after the prompt."""
        body = {
            "prompt": list(prompt_ids),
            "max_tokens": output_len,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **self._sampling,
        }
        reply = Reply()
        try:
            is_done = False
            async for data in stream_events(self._address, "/v1/completions", self._headers, body):
                is_done = data == _DONE
                if not is_done:
                    _take(reply, json.loads(data))
            if not is_done and reply.error is None:
                reply.error = "the stream ended without [DONE]"
        except (BenchError, ValueError) as error:
            reply.error = str(error)
        return reply


def _take(reply: Reply, chunk: dict[str, Any]) -> None:
    now = time.perf_counter()
    if "error" in chunk:
        reply.error = str(chunk["error"].get("message", chunk["error"]))
        return
    for choice in chunk.get("choices") or ():
        ids = choice.get("token_ids")
        if ids:
            reply.token_ids = [*(reply.token_ids or ()), *ids]
        if ids or choice.get("text"):
            reply.times_s.append(now)
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        if reply.finish_reason and not (reply.times_s and reply.times_s[-1] == now):
            # The last token may be one without text of its own; its time is that of the end.
            reply.times_s.append(now)
    usage = chunk.get("usage")
    if usage:
        reply.output_len = usage["completion_tokens"]
        reply.cached_len = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        details = usage.get("completion_tokens_details") or {}
        reply.accepted_len = details.get("accepted_prediction_tokens")
