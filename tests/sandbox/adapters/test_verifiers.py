"""Tasks through verifiers: its loaders, its endpoint and its scoring, with a model that plays from a script."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.errors import SandboxDied
from benthic.sandbox.probe import local_host
from benthic.sandbox.records import Reason, State
from benthic.sandbox.sandbox import Sandbox
from tests.sandbox.kinds import require_kind

vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed (extra benthic[verifiers])")

from benthic.sandbox.tools.adapters.verifiers import SandboxTask  # noqa: E402

MODULE = """
from benthic.sandbox.records import Limits, SandboxSpec
from benthic.sandbox.tools import FileCheck, Task
from benthic.sandbox.tools.adapters.verifiers import SandboxHarness, SandboxTaskset


class Writing(SandboxTaskset):
    def sandbox_tasks(self):
        for word in ("hello", "bye"):
            yield Task(
                id=word,
                prompt=f"Write {word} into /work/out.",
                system="Be brief.",
                spec=SandboxSpec(kind="function", limits=Limits(memory_bytes=128 << 20, num_processes=32)),
                checks=(FileCheck(name="out", path="/work/out", content=word.encode()),),
                max_steps=3,
            )


__all__ = ["SandboxHarness", "Writing"]
"""


class Scripted:
    """A model behind HTTP: each request gets the next message."""

    def __init__(self, said: list[dict[str, Any]]) -> None:
        self.requests: list[dict[str, Any]] = []
        script = iter(said)
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                message = {"role": "assistant", "content": None, **next(script)}
                ending = "tool_calls" if message.get("tool_calls") else "stop"
                answer = {
                    "id": f"c{len(requests)}",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "scripted",
                    "choices": [{"index": 0, "message": message, "finish_reason": ending}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


def call(number: int, tool: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": f"call{number}", "type": "function", "function": function}]}


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    require_kind("function")
    (tmp_path / "writing_words.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "writing_words", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = {
        "taskset": {"id": "writing_words", "root": str(tmp_path / "state")},
        "agent": {"runtime": {"type": "subprocess"}},
    }
    yield vf.load_environment(vf.resolve_env_config(config))

    async def left() -> list[Any]:
        async with local_host(tmp_path / "state") as host:
            return [info for info in await host.sandboxes() if info.state is not State.DEAD]

    assert asyncio.run(left()) == []


def played(environment: Any, *said: dict[str, Any]) -> tuple[Any, Scripted]:
    model = Scripted(list(said))
    threading.Thread(target=model.server.serve_forever, daemon=True).start()

    async def whole() -> Any:
        client = vf.EvalClientConfig(base_url=model.url, api_key_var="NO_KEY")
        task = next(iter(environment.taskset))
        async with environment.serving():
            return await environment.run_episode(task, vf.ModelContext(model="scripted", client=client))

    try:
        (trace,) = asyncio.run(whole()).traces
    finally:
        model.server.shutdown()
        model.server.server_close()
    return trace, model


def test_an_episode_runs_through_verifiers_to_its_reward(environment: Any) -> None:
    trace, model = played(environment, call(1, "bash", command="printf hello > out; pwd"), call(2, "submit"))
    assert trace.ok, trace.errors
    assert (trace.reward, trace.metrics["check_out"], trace.num_turns) == (1.0, 1.0, 2)
    assert [message["role"] for message in model.requests[0]["messages"]] == ["system", "user"]
    assert "bash" in [tool["function"]["name"] for tool in model.requests[0]["tools"]]
    assert model.requests[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call1", "content": "/work"}
    assert trace.info["sandbox"]["reason"] == "judged"
    assert [message.content for message in trace.tool_messages] == ["/work"]


def test_bad_work_is_a_zero_that_counts(environment: Any) -> None:
    trace, _ = played(environment, {"content": "I would rather not."})
    assert (trace.ok, trace.reward, trace.rewards["work"].score) == (True, 0.0, 0.0)


def test_steps_that_run_out_truncate_and_the_work_is_judged(environment: Any) -> None:
    steps = [call(number, "bash", command="printf hello > out") for number in range(3)]
    trace, _ = played(environment, *steps)
    assert (trace.ok, trace.is_truncated, trace.reward) == (True, True, 1.0)


@pytest.mark.parametrize("place", ["at the start", "while playing", "while judging"])
def test_a_machine_that_fails_voids_the_rollout(environment: Any, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    run = Sandbox.call_logged
    verb = {"at the start": "list", "while playing": "exec", "while judging": "download"}[place]

    async def dead(self: Sandbox, request: Any) -> Any:
        if request.verb == verb:
            raise SandboxDied(self.id, Reason.HOST_LOST)
        return await run(self, request)

    monkeypatch.setattr(Sandbox, "call_logged", dead)
    said = [call(1, "write_file", path="out", content="hello"), call(2, "bash", command="true"), call(3, "submit")]
    trace, _ = played(environment, *said)
    assert not trace.ok and trace.rewards.get("work") is None
    assert trace.last_error.type == "SandboxError" and "host_lost" in trace.last_error.message


def test_a_sandbox_that_its_agent_killed_is_a_zero(environment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Sandbox.call_logged

    async def dead(self: Sandbox, request: Any) -> Any:
        if request.verb == "exec":
            raise SandboxDied(self.id, Reason.OUT_OF_MEMORY)
        return await run(self, request)

    monkeypatch.setattr(Sandbox, "call_logged", dead)
    trace, _ = played(environment, call(1, "bash", command="true"))
    assert (trace.ok, trace.reward) == (True, 0.0)
    assert "out_of_memory" in str(trace.info["sandbox"]["signals"])


def test_what_judges_is_not_in_the_data_that_travels(environment: Any) -> None:
    first, second = environment.taskset
    assert isinstance(first, SandboxTask)
    assert "/work/out" not in first.data.model_dump_json().replace(first.task.prompt, "")
    assert (first.key, second.key, second.data.idx) == ("hello", "bye", 1)
