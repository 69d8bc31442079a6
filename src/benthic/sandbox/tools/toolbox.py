"""A sandbox's tools for one agent: schemas for the model, and a dispatcher for its calls.

Whatever a model writes is answered with an observation; only the sandbox's own end is an exception. The place of each
call in the trajectory is kept by its id, so that a transcript and the sandbox's log can be laid side by side.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

from benthic.sandbox.errors import CallRefused, CommandTimeout, NotSupported, PathError
from benthic.sandbox.records import Result
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.tools.arguments import BadCall, ToolCall, call_id, read_call
from benthic.sandbox.tools.definitions import SCHEMAS, schemas_of
from benthic.sandbox.tools.edit import EditRefused, replace_once
from benthic.sandbox.tools.observation import OBSERVATION_BYTES, observe, shorten

_READ_BYTES = 4 << 20


class Toolbox:
    """The tools of one sandbox.

    tools = Toolbox(sandbox, ["bash", "submit"])
    message = await tools(call)      # {"role": "tool", "tool_call_id": ..., "content": ...}
    """

    def __init__(
        self,
        sandbox: Sandbox,
        names: Sequence[str] = tuple(SCHEMAS),
        *,
        timeout_s: float = 60.0,
        observation_bytes: int = OBSERVATION_BYTES,
    ) -> None:
        self.schemas = schemas_of(names)
        self.submission: str | None = None
        """What was handed in; None before."""
        self.places: dict[str, int] = {}
        """The trajectory's place of the last thing that a call did, by the call's id."""
        self._sandbox, self._names = sandbox, tuple(names)
        self._shell = sandbox.session("tool")
        self._timeout_s, self._observation_bytes = timeout_s, observation_bytes
        self._tools: dict[str, Callable[[dict[str, Any]], Awaitable[str]]] = {
            "bash": self._bash,
            "python": self._python,
            "read_file": self._read_file,
            "write_file": self._write_file,
            "edit_file": self._edit_file,
            "submit": self._submit,
        }

    async def __call__(self, call: Any) -> dict[str, str]:
        """Runs one call and says what came of it, as a message of role `tool`.

        Raises:
            SandboxDied: the sandbox is gone.
        """
        try:
            content = await self._run(read_call(call, self._names))
        except BadCall as error:
            content = f"[error: {error}]"
        return {"role": "tool", "tool_call_id": call_id(call), "content": content}

    async def _run(self, call: ToolCall) -> str:
        if self.submission is not None:
            return "[error: the work was handed in already]"
        try:
            return await self._tools[call.name](call.arguments)
        except (CallRefused, PathError, EditRefused, NotSupported) as error:
            return f"[error: {error}]"
        finally:
            self.places[call.id] = self._sandbox.next_seq - 1

    async def _bash(self, arguments: dict[str, Any]) -> str:
        command, timeout_s = arguments["command"], self._seconds(arguments)
        return await self._observed(self._shell.exec(command, timeout_s=timeout_s))

    async def _python(self, arguments: dict[str, Any]) -> str:
        code = arguments["code"].encode()
        running = self._sandbox.exec(("python3", "-"), stdin=code, timeout_s=self._seconds(arguments))
        return await self._observed(running)

    async def _observed(self, running: Awaitable[Result]) -> str:
        try:
            result = await running
        except CommandTimeout as error:
            result = error.result
        return observe(result, self._observation_bytes)

    async def _read_file(self, arguments: dict[str, Any]) -> str:
        data = await self._sandbox.read(self._path(arguments), limit=_READ_BYTES)
        first, count = arguments.get("first_line", 1), arguments.get("num_lines")
        if first < 1 or (count is not None and count < 0):
            raise BadCall("lines are counted from 1")
        lines = data.decode("utf-8", "replace").splitlines(keepends=True)
        chosen = lines[first - 1 :] if count is None else lines[first - 1 : first - 1 + count]
        return shorten("".join(chosen), self._observation_bytes) or f"[no such lines; the file has {len(lines)}]"

    async def _write_file(self, arguments: dict[str, Any]) -> str:
        data = arguments["content"].encode()
        await self._sandbox.write(self._path(arguments), data)
        return f"[{len(data)} bytes written]"

    async def _edit_file(self, arguments: dict[str, Any]) -> str:
        data = await self._sandbox.read(self._path(arguments), limit=_READ_BYTES)
        if len(data) >= _READ_BYTES:
            raise EditRefused(f"the file has {_READ_BYTES} bytes or more; edit it with a command")
        edit = replace_once(data, arguments["old"], arguments["new"], replaces_all=arguments.get("all", False))
        await self._sandbox.write(self._path(arguments), edit.data)
        return f"[replaced {edit.num_replaced} time{'s' if edit.num_replaced != 1 else ''}]"

    async def _submit(self, arguments: dict[str, Any]) -> str:
        self.submission = arguments.get("answer", "")
        return "[handed in]"

    def _path(self, arguments: dict[str, Any]) -> str:
        return str(PurePosixPath(self._sandbox.spec.cwd, arguments["path"]))

    def _seconds(self, arguments: dict[str, Any]) -> float:
        """A model may ask for less time than there is, never for more."""
        asked = arguments.get("timeout", self._timeout_s)
        return float(min(max(asked, 0.1), self._timeout_s)) if asked == asked else self._timeout_s
