"""Sandboxes for Inspect evaluations: `Task(..., sandbox=("benthic", "benthic.json"))`, or a `BenthicConfig`.

A command's failure, time-out and overlong output are told in Inspect's words. So is the end of a sandbox that was the
agent's doing. One that was the machine's goes through as it is: the sample then has an error, and no score.
"""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict

from benthic.errors import ConfigError
from benthic.sandbox.errors import CommandTimeout, PathError, SandboxDied
from benthic.sandbox.local import LocalHost
from benthic.sandbox.probe import local_host
from benthic.sandbox.records import Command, Kind, Limits, Network, Result, SandboxSpec
from benthic.sandbox.sandbox import Sandbox

_DEFAULTS = Limits()
_CANNOT_EXECUTE = 126
_BY_SIGNAL = 128
"""Plus the signal's number: a shell's word for it, which Inspect expects."""


class BenthicConfig(BaseModel):
    """What the sandboxes of an evaluation are made from; the words are those of `SandboxSpec` and `Limits`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = "container"
    image: str | None = None
    layers: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cwd: str = "/work"
    driver: str | None = None
    ttl_s: float | None = 3600.0
    network: tuple[str, ...] = ()
    """Destinations that may be reached, as host:port."""
    cpus: float = _DEFAULTS.cpus
    memory_bytes: int = _DEFAULTS.memory_bytes
    disk_bytes: int = _DEFAULTS.disk_bytes
    num_processes: int = _DEFAULTS.num_processes
    root: str | None = None
    """Where this machine keeps its sandboxes; None takes the usual place."""

    def spec(self) -> SandboxSpec:
        """The same as a sandbox's own record."""
        limits = Limits(
            cpus=self.cpus,
            memory_bytes=self.memory_bytes,
            disk_bytes=self.disk_bytes,
            num_processes=self.num_processes,
        )
        return SandboxSpec(
            kind=self.kind,
            image=self.image,
            layers=self.layers,
            limits=limits,
            network=Network.allow(*self.network),
            env=self.env,
            cwd=self.cwd,
            driver=self.driver,
            ttl_s=self.ttl_s,
        )


@sandboxenv(name="benthic")
class BenthicSandboxEnvironment(SandboxEnvironment):
    """One sandbox of one sample. Needs Inspect's usual event loop, asyncio."""

    def __init__(self, sandbox: Sandbox, host: LocalHost) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._host = host

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A new sandbox, under the name `default`."""
        chosen = _config_of(config)
        host = local_host(Path(chosen.root) if chosen.root else None)
        await host.open()
        try:
            sandbox = await Sandbox.create_from(chosen.spec(), host=host)
        except BaseException:
            await host.leave()
            raise
        return {"default": cls(sandbox, host)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Ends the sample's sandboxes; their logs stay."""
        for environment in environments.values():
            if isinstance(environment, cls):
                await environment._close()

    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Ends one sandbox by its id; without one, nothing: `benthic sandbox gc` knows what nobody owns."""
        if id is not None:
            await (await Sandbox.attach(id)).close()

    @classmethod
    def config_files(cls) -> list[str]:
        """Looked for beside a task."""
        return ["benthic.json"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A config as logs and tasks of other processes have it."""
        return BenthicConfig.model_validate(config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command without a shell.

        Args:
            timeout_retry: not heeded: a command that was ended has left its traces, and is never run twice.
            concurrency: not heeded: a sandbox's processors are its limit.

        Raises:
            TimeoutError, OutputLimitExceededError, PermissionError: as Inspect says.
            SandboxUserUnsupportedError: there are the ordinary user (None) and `root`.
            SandboxUnavailableError: the agent has killed its sandbox.
            SandboxDied: the machine has.
        """
        if user not in (None, "root"):
            raise SandboxUserUnsupportedError(
                f"there is no user {user!r}; there are 'root' and, with None, the usual one"
            )
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        command = Command(
            argv=tuple(cmd),
            cwd=None if cwd is None else self._path(cwd),
            env=tuple((env or {}).items()),
            stdin=input.encode() if isinstance(input, str) else input or b"",
            timeout_s=timeout,
            max_output_bytes=limit,
            user=user,
        )
        async with _agents_doing():
            try:
                result = await self.sandbox.exec(command)
            except CommandTimeout as error:
                raise TimeoutError(str(error)) from error
        if result.is_truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.text)
        return _exec_result(result)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Replaces a file; missing folders are made."""
        path = self._path(file)
        async with _agents_doing():
            try:
                await self.sandbox.write(path, contents, atomic=False)  # a file that may not be written must refuse
            except PathError as error:
                raise await self._os_error(path, error) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """A file's content; line ends stay as they are."""
        path, limit = self._path(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        async with _agents_doing():
            try:
                data = await self.sandbox.read(path, limit=limit + 1)
            except PathError as error:
                raise await self._os_error(path, error) from error
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets a shell in it.

        Raises:
            ConnectionError: it is gone.
        """
        info = await self.sandbox.info()
        if info.reason is not None:
            raise ConnectionError(f"sandbox {self.sandbox.id} is gone ({info.reason})")
        return SandboxConnection(type="benthic", command=f"benthic sandbox shell {self.sandbox.id}")

    def default_polling_interval(self) -> float:
        """Seconds; asking costs milliseconds."""
        return 0.2

    def _path(self, path: str) -> str:
        return str(PurePosixPath(self.sandbox.spec.cwd, path))

    async def _os_error(self, path: str, error: PathError) -> OSError:
        """The error that Inspect expects, by the system's words and by what stands there."""
        what = str(error)
        if os.strerror(errno.EACCES) in what or os.strerror(errno.EROFS) in what:
            return PermissionError(what)
        try:
            found = await self.sandbox.stat(path)
        except PathError:
            return FileNotFoundError(what)
        return IsADirectoryError(what) if found.type == "folder" else OSError(what)

    async def _close(self) -> None:
        try:
            await self.sandbox.close()
        finally:
            await self._host.leave()


def _config_of(config: SandboxEnvironmentConfigType | None) -> BenthicConfig:
    if config is None:
        return BenthicConfig()
    if isinstance(config, str):
        return BenthicConfig.model_validate_json(Path(config).read_bytes())
    if isinstance(config, BenthicConfig):
        return config
    raise ConfigError(
        f"a sandbox's config is a {type(config).__name__}; it must be a BenthicConfig or a JSON file of one"
    )


def _exec_result(result: Result) -> ExecResult[str]:
    stderr = result.stderr.decode("utf-8", "replace")
    if result.returncode == _CANNOT_EXECUTE and "permission denied" in stderr.lower():
        raise PermissionError(stderr.strip())
    code = 1 if result.returncode is None else result.returncode
    code = _BY_SIGNAL - code if code < 0 else code
    return ExecResult(success=code == 0, returncode=code, stdout=result.text, stderr=stderr)


@asynccontextmanager
async def _agents_doing() -> AsyncIterator[None]:
    """An end that the agent brought about is for the agent to see and for the scorer to judge."""
    try:
        yield
    except SandboxDied as error:
        if error.is_infra:
            raise
        raise SandboxUnavailableError(str(error)) from error
