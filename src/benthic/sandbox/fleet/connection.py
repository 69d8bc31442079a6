"""A client's side of HTTP to a gateway or an agent: the same request is sent again until somebody answers it.

Sending again is safe for everything that carries a key or a place in a trajectory. What carries neither (input fed to
a command, a fork) names itself by a request id, which the agent remembers; an agent that was started since then does
not, and refuses with `OutcomeUnknown` instead of doing it twice.
"""

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from benthic.errors import BenthicError, ConfigError, RequestError
from benthic.sandbox.errors import HostUnreachable
from benthic.sandbox.fleet import headers as names
from benthic.sandbox.fleet.frames import Frame, FrameReader
from benthic.sandbox.host import Answer
from benthic.sandbox.wire import unpack_error

HOLD_S = 20.0
_READ_S = 3 * HOLD_S
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 2.0


class Connection:
    """Requests to one server.

    Args:
        url: `http://host:port`, `https://host` or `unix:/path/of/socket`.
        token: sent as a bearer token.
        patience_s: how long nobody may answer before a request fails.
    """

    def __init__(self, url: str, *, token: str | None = None, patience_s: float = 120.0) -> None:
        self.url, self.patience_s = url, patience_s
        authorization = {"authorization": f"Bearer {token}"} if token else {}
        self._client = _client_of(url, authorization)

    async def aclose(self) -> None:
        """Closes its sockets."""
        await self._client.aclose()

    async def json(
        self, method: str, path: str, body: Any = None, *, once_for: str | None = None, patience_s: float | None = None
    ) -> Any:
        """One request with JSON in and out.

        Args:
            method: of HTTP.
            path: with its leading slash, quoted.
            body: JSON values.
            once_for: the incarnation that is asked, for a request that must not run twice and names no place.
            patience_s: instead of the connection's own.
        """
        content = b"" if body is None else json.dumps(body).encode()
        response = await self.send(method, path, content, "application/json", once_for, patience_s)
        with understood(self.url):
            return response.json() if response.content else None

    async def send(
        self,
        method: str,
        path: str,
        content: bytes,
        content_type: str,
        once_for: str | None = None,
        patience_s: float | None = None,
    ) -> httpx.Response:
        """The response to a request that was sent as often as it took.

        Raises:
            HostUnreachable: nobody answered in time.
            BenthicError: the error that was answered.
        """
        sent = {names.REQUEST_ID: uuid.uuid4().hex, names.HOLD: str(HOLD_S), "content-type": content_type}
        patience = Patience(self.url, self.patience_s if patience_s is None else patience_s)
        while True:
            try:
                response = await self._client.request(method, path, content=content, headers=sent)
            except httpx.ConnectError as error:
                await patience.pause(repr(error))
                continue
            except httpx.TransportError as error:
                sent |= {names.AGAIN: once_for} if once_for is not None else {}
                await patience.pause(repr(error))
                continue
            except RuntimeError as error:
                if not self._client.is_closed:
                    raise
                raise HostUnreachable(f"the connection to {self.url} was closed under a request") from error
            if response.status_code == 202:
                patience.renew()
            elif _may_pass(response):
                sent |= {names.AGAIN: once_for} if once_for is not None else {}
                if patience.is_spent:
                    return _checked(response)
                await patience.pause(response.text[:200])
            else:
                return _checked(response)

    async def open(self, method: str, path: str, content: bytes, sent: Mapping[str, str]) -> httpx.Response:
        """The response to one attempt, its body not read yet; whoever asked closes it.

        Raises:
            httpx.TransportError: there is none.
        """
        return await self._client.send(
            self._client.build_request(method, path, content=content, headers=dict(sent)), stream=True
        )

    @asynccontextmanager
    async def frames(self, method: str, path: str, content: bytes = b"") -> AsyncIterator[AsyncIterator[Frame]]:
        """The frames of one streamed response; pings are left out.

        Raises:
            Cut: the stream was cut, or nobody answers now.
            BenthicError: the error that was answered instead of a stream.
        """
        sent = {names.REQUEST_ID: uuid.uuid4().hex}
        try:
            async with self._client.stream(method, path, content=content, headers=sent) as response:
                if not response.is_success:
                    await response.aread()
                    if _may_pass(response):
                        raise Cut(response.text[:200])
                    _checked(response)
                yield _frames(response)
        except httpx.TransportError as error:
            raise Cut(repr(error)) from error


@contextmanager
def understood(url: str) -> Iterator[None]:
    """What is read inside is a server's answer: if it makes no sense, that is not its caller's mistake.

    Raises:
        HostUnreachable: it makes none.
    """
    try:
        yield
    except (RequestError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise HostUnreachable(f"{url} answered in a form of its own ({error}); is it a gateway or an agent?") from error


class Cut(Exception):
    """A stream ended before its last frame."""


class Patience:
    """Growing pauses between attempts, until nobody has answered for too long."""

    def __init__(self, url: str, patience_s: float) -> None:
        self._url, self._patience_s = url, patience_s
        self.renew()

    def renew(self) -> None:
        """Somebody answered."""
        self._since = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S

    @property
    def is_spent(self) -> bool:
        """Whether it has been too long."""
        return time.monotonic() - self._since >= self._patience_s

    async def pause(self, problem: str) -> None:
        """Waits before the next attempt.

        Raises:
            HostUnreachable: it has been too long.
        """
        waited_s = time.monotonic() - self._since
        if waited_s >= self._patience_s:
            raise HostUnreachable(f"{self._url} has not answered for {waited_s:.1f} s ({problem}); ask again later")
        await asyncio.sleep(min(self._pause_s * random.uniform(0.5, 1.5), self._patience_s - waited_s))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)


def _client_of(url: str, authorization: Mapping[str, str]) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=30.0)
    timeout = httpx.Timeout(_READ_S, connect=5.0, pool=None)
    if url.startswith("unix:"):
        transport = httpx.AsyncHTTPTransport(uds=url.removeprefix("unix:"), limits=limits, verify=False)
        return httpx.AsyncClient(
            transport=transport, base_url="http://host", headers=authorization, timeout=timeout, trust_env=False
        )
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"url ({url!r}) must begin with http://, https:// or unix:/")
    is_encrypted = url.startswith("https://")  # else reading the certificates of this machine is 30 ms for nothing
    return httpx.AsyncClient(
        base_url=url,
        headers=authorization,
        timeout=timeout,
        limits=limits,
        trust_env=False,
        verify=is_encrypted,
    )


def _may_pass(response: httpx.Response) -> bool:
    """Whether the same request may succeed later. Words of 5xx that are not ours are a proxy's, or of a server that
    was ended in the middle of its answer."""
    is_ours = response.headers.get("content-type", "").startswith("application/json")
    return names.RETRY in response.headers or (response.status_code >= 500 and not is_ours)


def _checked(response: httpx.Response) -> httpx.Response:
    """The response, if it carries no error."""
    if response.is_success:
        return response
    raise error_of(response.status_code, response.content)


def error_of(status: int, body: bytes) -> BenthicError:
    """The error that a response carries."""
    try:
        fields = json.loads(body)
        answer = Answer(error=fields["error"], value=fields["value"], data=bytes.fromhex(fields.get("data", "")))
        return unpack_error(answer)
    except (ValueError, TypeError, KeyError, AttributeError, RequestError):
        return HostUnreachable(f"answered {status} in a form of its own: {body[:200]!r}; is it a gateway or an agent?")


async def _frames(response: httpx.Response) -> AsyncIterator[Frame]:
    reader = FrameReader()
    async for piece in response.aiter_raw():
        with understood(str(response.url)):
            frames = reader.feed(piece)
        for frame in frames:
            if frame.type != "ping":
                yield frame
