"""The few calls to a Docker daemon that sandboxes need, over its unix socket.

The daemon's HTTP interface: https://docs.docker.com/reference/api/engine/version/v1.41/
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from benthic.errors import SandboxError
from benthic.sandbox.errors import StartFailed

SOCKET = Path("/var/run/docker.sock")
VERSION = "v1.41"
"""Of Docker 20.10; later daemons speak it too."""
CALL_LIMIT_S = 60.0
_MISSING, _CONFLICT = 404, 409
_PAUSE_S = 0.05


def daemon_socket() -> Path:
    """Where the daemon listens: what $DOCKER_HOST says, if that is a unix socket."""
    host = os.environ.get("DOCKER_HOST", "")
    return Path(host.removeprefix("unix://")) if host.startswith("unix://") else SOCKET


class DockerApi:
    """One daemon. Each call opens a connection of its own: they are few, and come from more than one event loop."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    async def version(self) -> str:
        """What the daemon says of itself.

        Raises:
            StartFailed: none answers.
        """
        told = await self._ask("GET", "/version")
        return f"Docker {told['Version']}, API {told['ApiVersion']}"

    async def is_remapped(self) -> bool:
        """Whether root inside of containers is not the host's root."""
        return any("name=userns" in option for option in (await self._ask("GET", "/info"))["SecurityOptions"] or ())

    async def has_image(self, name: str) -> bool:
        """Whether the daemon holds an image."""
        return await self._ask("GET", f"/images/{name}/json", fine=(_MISSING,)) is not None

    async def import_image(self, name: str, tag: str, archive: Path) -> None:
        """Makes an image of one layer from a tar archive of a root file system.

        Raises:
            StartFailed: the daemon refuses it.
        """
        async with self._client() as client:
            answer = await client.post(
                "/images/create", params={"fromSrc": "-", "repo": name, "tag": tag}, content=_pieces(archive)
            )
        lines = [json.loads(line) for line in answer.text.splitlines()]
        if error := next((line["error"] for line in lines if "error" in line), None):
            raise StartFailed(f"the daemon takes no image: {error}", stage="image")
        _checked(answer)

    async def create(self, name: str, config: Mapping[str, Any]) -> str:
        """Makes a container, not started yet; its id."""
        return str((await self._ask("POST", "/containers/create", config, name=name))["Id"])

    async def start(self, container: str) -> None:
        """Starts its first process."""
        await self._ask("POST", f"/containers/{container}/start")

    async def state(self, container: str) -> dict[str, Any] | None:
        """Its `State` (`Pid`, `OOMKilled`, ..); None if there is no such container."""
        told = await self._ask("GET", f"/containers/{container}/json", fine=(_MISSING,))
        return None if told is None else told["State"]

    async def remove(self, container: str) -> None:
        """Ends it and drops what it has written; fine if there is none, or if somebody else is removing it.

        Raises:
            TimeoutError: it is not gone within `CALL_LIMIT_S`.
        """
        await self._ask("DELETE", f"/containers/{container}", fine=(_MISSING, _CONFLICT), force="1", v="1")
        async with asyncio.timeout(CALL_LIMIT_S):
            while await self.state(container) is not None:
                await asyncio.sleep(_PAUSE_S)

    async def names(self, label: str) -> list[str]:
        """Names of all containers that carry a label, running or not."""
        filters = json.dumps({"label": [label]})
        return [
            told["Names"][0].lstrip("/")
            for told in await self._ask("GET", "/containers/json", all="1", filters=filters)
        ]

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        fine: Sequence[int] = (),
        **query: str,
    ) -> Any:
        """The answer's JSON; None for an empty one, and for a status that is fine."""
        async with self._client() as client:
            answer = await client.request(method, path, params=query, json=body)
        if answer.status_code in fine:
            return None
        _checked(answer)
        return answer.json() if answer.content else None

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        if not self.socket.exists():
            raise StartFailed(f"no Docker daemon: there is no {self.socket}", stage="daemon")
        # Without certificates, which take longer to read than a call takes.
        transport = httpx.AsyncHTTPTransport(uds=str(self.socket), verify=False)  # noqa: S501
        async with httpx.AsyncClient(
            transport=transport, base_url=f"http://docker/{VERSION}", timeout=CALL_LIMIT_S
        ) as client:
            try:
                yield client
            except httpx.TransportError as error:
                raise StartFailed(
                    f"the Docker daemon at {self.socket} does not answer: {error!r}", stage="daemon"
                ) from error


def _checked(answer: httpx.Response) -> None:
    if answer.status_code >= 400:
        raise SandboxError(f"the Docker daemon refuses ({answer.status_code}): {answer.text.strip()[:1000]}")


async def _pieces(archive: Path) -> AsyncIterator[bytes]:
    with archive.open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece
