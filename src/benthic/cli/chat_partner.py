"""Who answers in `benthic chat`: a model in this process, or a server elsewhere; both take chat bodies."""

import json
import os
from collections.abc import Generator, Iterator
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from benthic.errors import BenthicError, ConfigError

if TYPE_CHECKING:
    from benthic.server.local import LocalService

_PATIENCE_S = 600.0


Chunks = Generator[dict[str, Any], None, None]


class ServerError(BenthicError):
    """A server refused, failed or left; the message says which and why."""


class ChatPartner(Protocol):
    """What a conversation needs of a model."""

    @property
    def name(self) -> str: ...

    def stream(self, body: dict[str, Any]) -> Chunks:
        """The chunks of a chat reply as they come. Closing the generator cancels the reply."""
        ...


class LocalPartner:
    """A model in this process."""

    def __init__(self, local: "LocalService") -> None:
        self._local = local
        self.name = local.service.name

    def stream(self, body: dict[str, Any]) -> Chunks:
        """See `ChatPartner`."""
        return self._local.stream(body)


class RemotePartner:
    """The model of a server that speaks OpenAI's protocol.

    Args:
        url: its address, with or without /v1.
        key: sent as a bearer; None reads `BENTHIC_API_KEY`.

    Raises:
        ConfigError: `url` is no http or https address.
        ServerError: it does not answer, or serves no model.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--url is {url!r}; it must be like http://127.0.0.1:8000")
        self._base = url.rstrip("/").removesuffix("/v1")
        key = key or os.environ.get("BENTHIC_API_KEY")
        self._headers = {"content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        models = json.loads(b"".join(self._lines("/v1/models", None)))["data"]
        if not models:
            raise ServerError(f"{self._base} serves no model")
        self.name: str = models[0]["id"]

    def stream(self, body: dict[str, Any]) -> Chunks:
        """See `ChatPartner`."""
        wanted = {**body, "model": self.name, "stream": True}
        is_whole = False
        for line in self._lines("/v1/chat/completions", json.dumps(wanted).encode()):
            data = line.decode().removeprefix("data:").strip()
            if not line.startswith(b"data:"):
                continue
            if data == "[DONE]":
                is_whole = True
                break
            chunk = json.loads(data)
            if "error" in chunk:
                raise ServerError(str(chunk["error"].get("message", chunk["error"])))
            yield chunk
        if not is_whole:
            raise ServerError("the connection broke off in the middle of the answer")

    def _lines(self, route: str, body: bytes | None) -> Iterator[bytes]:
        request = Request(self._base + route, data=body, headers=self._headers)
        try:
            with urlopen(request, timeout=_PATIENCE_S) as reply:
                yield from reply
        except HTTPError as error:
            raise ServerError(f"{self._base} says {error.code}: {_message(error.read())}") from None
        except (URLError, HTTPException, OSError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise ServerError(f"{self._base} cannot be reached: {reason}") from None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace") or "no reason given"
