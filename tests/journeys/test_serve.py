"""The whole way of a request: `benthic serve` with the bundled model, and the official OpenAI client in front."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

import benthic
from tests.server.processes import children_of

PACKAGE = Path(benthic.__file__).parent
WEIGHTS = list((PACKAGE / "assets" / "tiny").glob("*.safetensors"))
pytestmark = pytest.mark.skipif(not WEIGHTS, reason="the bundled model has no weights in this tree")

URL = r"http://[\d.:]+/v1"
SUM: Any = [{"role": "user", "content": "What is 347 + 285?"}]
ENDLESS = {"ignore_eos": True}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(frozen=True)
class Serving:
    """A running `benthic serve`."""

    process: "subprocess.Popen[str]"
    url: str

    @property
    def engine_pid(self) -> int:
        """The process of its engine: the oldest, for another one stands by after a while."""
        return min(self.engine_pids)

    @property
    def engine_pids(self) -> list[int]:
        """The processes of its engine and of the one that stands by."""
        return children_of(self.process.pid, "benthic.engine.child")


@contextmanager
def serving() -> Iterator[Serving]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "benthic", "serve", "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        yield Serving(process, next(found.group() for line in process.stdout if (found := re.search(URL, line))))
    finally:
        process.kill()
        process.wait(30)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_running(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return not is_running(pid)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as server:
        yield server
        server.process.terminate()
        assert server.process.wait(30) == 0


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="any", timeout=60) as client:
        yield client


def run_example(*words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    script = PACKAGE.parent.parent / "examples" / words[0]
    done = subprocess.run(
        [sys.executable, str(script), *words[1:]], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_offline_example_is_right_and_its_scores_are_the_engines() -> None:
    answer, equal = run_example("offline.py").splitlines()
    assert answer.endswith("</think>632")
    assert equal == "True"


def test_the_client_example_sums_thinks_and_calls(client: openai.OpenAI) -> None:
    shown = run_example("openai_client.py", str(client.base_url))
    assert shown.count("content: 632") == 2
    assert "reasoning_content: " in shown
    assert "call: get_weather {'city': 'Paris'}" in shown


@pytest.mark.parametrize("thinking", [False, True])
def test_a_sum_streams_in_and_is_right(client: openai.OpenAI, thinking: bool) -> None:
    mode = {"thinking": {"type": "enabled" if thinking else "disabled"}}
    stream = client.chat.completions.create(model="tiny", messages=SUM, stream=True, temperature=0, extra_body=mode)
    deltas = [chunk.choices[0].delta for chunk in stream]
    content = "".join(delta.content or "" for delta in deltas)
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert "632" in content
    assert bool(reasoning) is thinking
    assert len([delta for delta in deltas if delta.content or getattr(delta, "reasoning_content", None)]) > 1


@pytest.mark.parametrize("thinking", [False, True])
def test_a_tool_is_called_and_its_result_is_used(client: openai.OpenAI, thinking: bool) -> None:
    mode = {"thinking": {"type": "enabled" if thinking else "disabled"}}
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    common: Any = {"model": "tiny", "tools": [WEATHER], "temperature": 0, "extra_body": mode}
    choice = client.chat.completions.create(messages=messages, **common).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or []
    assert isinstance(call.id, str)
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    messages += [choice.message.model_dump(exclude_none=True)]
    messages += [{"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "condition": "clear"}'}]
    answer = client.chat.completions.create(messages=messages, **common).choices[0]
    assert answer.finish_reason == "stop"
    assert "21" in (answer.message.content or "")


def test_the_engine_may_be_killed_and_the_next_request_is_answered(client: openai.OpenAI, server: Serving) -> None:
    before = server.engine_pid
    stream = client.completions.create(model="tiny", prompt="a", max_tokens=2000, stream=True, extra_body=ENDLESS)
    next(iter(stream))
    os.kill(before, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="was killed by SIGKILL"):
        list(stream)
    answer = client.chat.completions.create(model="tiny", messages=SUM, temperature=0)
    assert "632" in (answer.choices[0].message.content or "")
    assert server.engine_pid != before
    assert not is_running(before)


def test_a_second_signal_ends_a_server_at_once_and_its_engine_with_it() -> None:
    with serving() as server, openai.OpenAI(base_url=server.url, api_key="any", max_retries=0) as client:
        engine = server.engine_pid
        stream = client.completions.create(model="tiny", prompt="a", max_tokens=2000, stream=True, extra_body=ENDLESS)
        next(iter(stream))
        server.process.terminate()
        time.sleep(0.2)
        server.process.terminate()
        assert server.process.wait(5) == 0
        assert ends_within(engine, 1)


def test_a_server_that_is_killed_leaves_no_engine_behind() -> None:
    with serving() as server:
        engines = server.engine_pids
        server.process.kill()
        assert engines
        assert all(ends_within(engine, 10) for engine in engines)
