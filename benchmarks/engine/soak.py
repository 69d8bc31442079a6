"""Everything at once against a server and its engine's process, for as long as asked, and then a look for what is left.

    python benchmarks/engine/soak.py --minutes 10 [--model tiny] [--seed 0] [--clients 12]

Clients ask, stream, leave in the middle, and send what must be refused; an operator pauses, retracts, takes new
weights, flushes, aborts and checks the books; now and then the engine's process is killed. Whatever happens, each
client gets one answer, and equal requests get equal answers. At the end nothing may be left: no open sequence, page,
window or row, no task, thread, descriptor or process more than after the first request.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benthic.engine.config import EngineConfig
from benthic.engine.messages import EngineSpec
from benthic.engine.process import EngineProcess
from benthic.engine.supervisor import RestartPolicy
from benthic.server.app import create_app
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from benthic.server.launch import DrainingServer
from benthic.server.listen import bind

KEY = {"authorization": "Bearer soak"}
PATH = "/v1/completions"
SETTLE_S = 30.0
CALM = ("ok", "left", "refused")
"""What may happen to a client while nobody kills or aborts."""

_POOLS = ("asyncio_", "AnyIO", "benthic-intake")
"""Threads of the two event loops and of the server's intake: pools that grow to their bound and stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakConfig:
    """One run."""

    spec: EngineSpec
    folder: Path
    """Of the tokenizer, and of the weights that updates load again."""
    seconds: float
    seed: int = 0
    num_clients: int = 12
    kill_every_s: float = 40.0
    max_prompt_len: int = 600
    max_tokens: int = 40
    vocab_size: int = 500


@dataclass(frozen=True, slots=True)
class Holdings:
    """What the processes hold when nothing goes on."""

    descriptors: int
    threads: int
    tasks: int
    child_descriptors: int
    child_threads: int


@dataclass(slots=True)
class Findings:
    """What happened and what was left."""

    outcomes: Counter[str] = field(default_factory=Counter)
    acts: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[int, str]] = field(default_factory=Counter)
    """What clients were told, by status (in a stream: 200) and message with its numbers as #."""
    problems: list[str] = field(default_factory=list)
    before: Holdings | None = None
    after: Holdings | None = None
    seconds: float = 0.0

    def count_error(self, status: int, message: str) -> None:
        """Somebody was told no."""
        self.errors[status, re.sub(r"\d+(\.\d+)?", "#", message)] += 1

    def error_lines(self) -> list[str]:
        """All that anybody was told, the most frequent first."""
        return [f"{count:6} x {status} {message}" for (status, message), count in self.errors.most_common()]

    def line(self) -> str:
        """The summary."""
        outcomes = " ".join(f"{name}={count}" for name, count in sorted(self.outcomes.items()))
        acts = " ".join(f"{name}={count}" for name, count in sorted(self.acts.items()))
        verdict = "nothing left behind" if not self.problems else "PROBLEMS: " + "; ".join(self.problems[:5])
        return f"soak {self.seconds:.0f} s: clients {outcomes} | operator {acts} | {self.after} | {verdict}"


class Server(threading.Thread):
    """The server in a thread, on a free port; `close` drains nothing."""

    def __init__(self, engine: EngineProcess, config: SoakConfig) -> None:
        super().__init__(name="soak-server", daemon=True)
        options = ServerConfig(port=0, admin_key="soak", drain_s=1.0, max_open_sequences=64)
        self.service = build_service(engine, engine.wait_ready(), config.folder, name="soak", config=options)
        app = create_app(self.service)
        app.add_api_route("/tasks", self._count_tasks, methods=["GET"])
        self._url: list[str] = []
        self._is_up = threading.Event()
        listener = bind(options, next_free=False)
        self._server = DrainingServer(app, self.service, listener=listener, ready=self._note)

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        assert self._is_up.wait(60)
        return self._url[0]

    def run(self) -> None:
        """Serves until `close`."""
        self._server.serve_until_stopped()

    def close(self) -> None:
        """Ends it."""
        self._server.stop()
        self.join(30)

    def _note(self, url: str) -> None:
        self._url.append(url)
        self._is_up.set()

    async def _count_tasks(self) -> int:
        return len(asyncio.all_tasks())


class Soak:
    """Clients and an operator on one event loop."""

    def __init__(self, config: SoakConfig, engine: EngineProcess, server: Server) -> None:
        self.config = config
        self.findings = Findings()
        self._engine = engine
        self._server = server
        self._random = random.Random(config.seed)
        self._known: dict[str, str] = {}
        self._num_upheavals = self._num_lasting = 0
        """Kills and aborts so far, and those that last: an answer that saw one of them may be an error."""
        self._shared = [self._ids(length) for length in (70, 200, config.max_prompt_len // 2)]
        self._end = 0.0

    async def run(self) -> Findings:
        """The whole run; every problem is a line of `findings.problems`."""
        began = time.monotonic()
        async with self._client() as client:
            await self._ask(client, self._body())
        self.findings.before = await self._holdings()
        self._end = time.monotonic() + self.config.seconds
        async with self._client() as client:
            work: list[Coroutine[Any, Any, None]] = [self._visit(client) for _ in range(self.config.num_clients)]
            await asyncio.gather(*work, self._operate(client), self._kill())
        await self._settle()
        self.findings.seconds = time.monotonic() - began
        return self.findings

    async def _visit(self, client: httpx.AsyncClient) -> None:
        acts: list[Callable[[httpx.AsyncClient], Coroutine[Any, Any, str]]] = [
            self._plain, self._plain, self._stream, self._stream, self._leave, self._leave_plain, self._oversize,
            self._nonsense,
        ]  # fmt: skip
        while time.monotonic() < self._end:
            was_calm = self._calm()
            try:
                outcome = await self._random.choice(acts)(client)
            except httpx.HTTPError as error:
                outcome = f"http {type(error).__name__}"
            self.findings.outcomes[outcome] += 1
            if outcome not in CALM and was_calm():
                self.findings.problems.append(f"a client saw {outcome!r} although nobody killed or aborted")

    async def _plain(self, client: httpx.AsyncClient) -> str:
        return await self._ask(client, self._body())

    async def _ask(self, client: httpx.AsyncClient, body: dict[str, Any]) -> str:
        response = await client.post(PATH, json=body)
        if response.status_code != 200:
            return self._refused(response)
        choice = response.json()["choices"][0]
        return self._compare(body, choice["text"], choice["finish_reason"])

    async def _stream(self, client: httpx.AsyncClient) -> str:
        body = self._body()
        text, reason = "", None
        async with client.stream("POST", PATH, json={**body, "stream": True}) as response:
            if response.status_code != 200:
                await response.aread()
                return self._refused(response)
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                frame = json.loads(line.removeprefix("data: "))
                if "error" in frame:
                    self._note(200, frame["error"])
                    return "error in stream"
                text += frame["choices"][0]["text"]
                reason = frame["choices"][0]["finish_reason"] or reason
        return self._compare(body, text, reason)

    async def _leave(self, client: httpx.AsyncClient) -> str:
        num_lines = self._random.randint(1, 12)
        async with client.stream("POST", PATH, json={**self._body(), "stream": True, "n": 2}) as response:
            async for _ in response.aiter_lines():
                num_lines -= 1
                if not num_lines:
                    break
        return "left"

    async def _leave_plain(self, client: httpx.AsyncClient) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._random.uniform(0.001, 0.3)):
                return await self._ask(client, self._body())
        return "left"

    async def _oversize(self, client: httpx.AsyncClient) -> str:
        context_len = self._server.service.context_len
        response = await client.post(PATH, json={"prompt": [5] * (context_len + 7), "max_tokens": 1})
        return "refused" if response.status_code == 400 else f"oversize: {self._refused(response)}"

    async def _nonsense(self, client: httpx.AsyncClient) -> str:
        body = self._random.choice([{}, {"prompt": ""}, {"prompt": [-1]}, {"prompt": "a", "temperature": -1}])
        response = await client.post(PATH, json=body)
        return "refused" if response.status_code == 400 else f"nonsense: {self._refused(response)}"

    def _refused(self, response: httpx.Response) -> str:
        """Notes an error that is nobody's mistake; even then it must be said in the right way."""
        status = response.status_code
        self._note(status, response.json().get("error", {}))
        if status in (429, 503) and "retry-after" not in response.headers:
            self.findings.problems.append(f"{status} without retry-after: {response.text}")
        return f"error {status}"

    def _note(self, status: int, error: dict[str, Any]) -> None:
        """Kills and aborts have names of their own; what has none is a fault."""
        message = str(error.get("message"))
        self.findings.count_error(status, message)
        if status == 500 or error.get("code") is None:
            self.findings.problems.append(f"{status}: {message}")

    async def _operate(self, client: httpx.AsyncClient) -> None:
        acts: list[tuple[str, dict[str, Any]]] = [
            *[("pause_generation", {"mode": "keep"})] * 3,
            *[("pause_generation", {"mode": "retract"})] * 3,
            ("pause_generation", {"mode": "abort"}),
            *[("update_weights_from_disk", {"model_path": str(self.config.folder)})] * 2,
            ("update_weights_from_disk", {"model_path": "/nowhere"}),
            ("flush_cache", {}),
            ("abort_request", {"abort_all": True}),
        ]
        while time.monotonic() < self._end:
            await asyncio.sleep(self._random.uniform(0.1, 1.0))
            name, body = self._random.choice(acts)
            is_harsh = body.get("mode") == "abort" or "abort_all" in body
            with self._upheaval() if is_harsh else contextlib.nullcontext():
                await self._call(client, name, body)
            if name == "pause_generation":
                await asyncio.sleep(self._random.uniform(0.0, 0.3))
                while not await self._call(client, "continue_generation", {}):
                    await asyncio.sleep(0.2)  # it died while it was paused, and the pause outlives it
            with contextlib.suppress(Exception):
                await self._check()

    async def _call(self, client: httpx.AsyncClient, name: str, body: dict[str, Any]) -> bool:
        was_calm = self._calm()
        response = await client.post(f"/{name}", json=body, headers=KEY)
        is_done = response.status_code == 200
        self.findings.acts[name if is_done else f"{name}:{response.status_code}"] += 1
        if not is_done and body.get("model_path") != "/nowhere" and was_calm():
            self.findings.problems.append(f"/{name} answered {response.text}")
        return is_done

    async def _kill(self) -> None:
        while True:
            wait_s = self._random.uniform(0.5, 1.5) * self.config.kill_every_s
            if time.monotonic() + wait_s > self._end:
                return
            await asyncio.sleep(wait_s)
            if self._engine.pid is not None and self._engine.state == "running":
                await self._kill_once(self._engine.pid)

    async def _kill_once(self, pid: int) -> None:
        num_restarts = self._engine.num_restarts
        with self._upheaval():
            self.findings.acts["kill"] += 1
            os.kill(pid, signal.SIGKILL)
            await self._until(lambda: self._engine.num_restarts > num_restarts and self._engine.state == "running")

    @contextlib.contextmanager
    def _upheaval(self) -> Iterator[None]:
        self._num_upheavals += 1
        self._num_lasting += 1
        yield
        self._num_lasting -= 1

    def _calm(self) -> Callable[[], bool]:
        """Asked later, whether nobody has killed or aborted since now."""
        before = None if self._num_lasting else self._num_upheavals
        return lambda: before == self._num_upheavals

    async def _check(self) -> None:
        try:
            await asyncio.wrap_future(self._engine.check())
            self.findings.acts["check"] += 1
        except Exception as error:
            if "AssertionError" in str(error):
                self.findings.problems.append(f"a law is broken: {error}")
            raise

    async def _settle(self) -> None:
        """Waits for the last answers, then looks at what is left."""
        problems, channel = self.findings.problems, self._server.service.channel
        if not await self._until(lambda: channel.num_open == 0 and self._engine.state == "running"):
            problems.append(f"{channel.num_open} sequences are open, the engine is {self._engine.state}")
        await self._check()
        stats = self._engine.stats
        held = (stats.num_running, stats.num_waiting, stats.used_pages, stats.used_windows)
        if any(held):
            problems.append(f"running, waiting, pages, windows are {held}")
        before = self.findings.before
        end = time.monotonic() + SETTLE_S
        while (after := await self._holdings()) != before and time.monotonic() < end:
            await asyncio.sleep(0.2)
        self.findings.after = after
        if after != before:
            problems.append(f"at first {before}, in the end {after}")

    async def _holdings(self) -> Holdings:
        async with self._client() as client:
            tasks = (await client.get("/tasks")).json()
        await asyncio.sleep(0.1)  # the server closes its side of that connection
        child = self._engine.pid or 0
        return Holdings(
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=sum(not thread.name.startswith(_POOLS) for thread in threading.enumerate()),
            tasks=tasks,
            child_descriptors=len(os.listdir(f"/proc/{child}/fd")),
            child_threads=len(os.listdir(f"/proc/{child}/task")),
        )

    def _compare(self, body: dict[str, Any], text: str, reason: str | None) -> str:
        """Equal requests must get equal answers, whatever goes on around them."""
        name, answer = json.dumps(body, sort_keys=True), json.dumps([text, reason])
        if self._known.setdefault(name, answer) != answer:
            self.findings.problems.append(f"two answers to {name}: {self._known[name]} and {answer}")
        return "ok"

    def _body(self) -> dict[str, Any]:
        rng = self._random
        prompt = rng.choice(self._shared)[: rng.choice([17, 64, 130, 1000])]
        if rng.random() < 0.2:
            prompt = [*prompt, *self._ids(rng.randint(1, 30))]
        return {
            "prompt": prompt,
            "max_tokens": rng.choice([1, 5, self.config.max_tokens]),
            "seed": rng.randint(0, 3),
            "temperature": rng.choice([0, 1]),
            "ignore_eos": True,
        }

    def _ids(self, length: int) -> list[int]:
        return [self._random.randrange(2, self.config.vocab_size) for _ in range(length)]

    async def _until(self, condition: Callable[[], bool]) -> bool:
        end = time.monotonic() + SETTLE_S
        while not condition():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.02)
        return True

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=120, limits=limits) as client:
            yield client


def soak(config: SoakConfig) -> Findings:
    """Runs it from start to end; the engine and the server are gone afterwards."""
    engine = EngineProcess(config.spec, restarts=RestartPolicy(first_wait_s=0.05, max_early_deaths=20))
    engine.start()
    server = Server(engine, config)
    server.start()
    try:
        findings = asyncio.run(Soak(config, engine, server).run())
    finally:
        server.close()
        engine.close()
    if server.is_alive():
        findings.problems.append("the server's thread does not end")
    return findings


def main() -> None:
    """Prints the summary; exit code 1 when something was left behind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clients", type=int, default=12)
    arguments = parser.parse_args()
    from benthic.models.checkpoint.load import resolve

    engine = EngineConfig(max_num_seqs=8, max_model_len=1024, stall_timeout_s=60.0)
    config = SoakConfig(
        spec=EngineSpec(model=arguments.model, device="cpu", engine=engine),
        folder=resolve(arguments.model),
        seconds=60 * arguments.minutes,
        seed=arguments.seed,
        num_clients=arguments.clients,
    )
    findings = soak(config)
    print(findings.line(), flush=True)
    print("\n".join(findings.error_lines()), flush=True)
    for problem in findings.problems:
        print("  " + problem[:300])
    raise SystemExit(1 if findings.problems else 0)


if __name__ == "__main__":
    main()
