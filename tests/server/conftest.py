"""A service over a tiny random model, and one whose engine says what a test wants it to say."""

import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import benthic
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.messages import EngineFacts, PauseMode
from benthic.engine.request import (
    ErrorKind,
    Event,
    FinalOutput,
    FinishReason,
    Request,
    RequestReport,
    RowExtras,
    TokenEvent,
    TokenLogprobs,
)
from benthic.engine.stats import EngineStats
from benthic.engine.weight_versions import WeightUpdate
from benthic.engine.worker import EngineWorker
from benthic.errors import CapacityError, CheckpointError, RequestError
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.models.transformer import Transformer
from benthic.server.app import create_app
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from benthic.server.launch import DrainingServer
from benthic.server.listen import bind
from benthic.server.service import Service
from benthic.text.tokenizer import Tokenizer
from tests.engine.fakes import EngineStub

TINY = Path(benthic.__file__).parent / "assets" / "tiny"
CONTEXT_LEN = 512


class ScriptedEngine(EngineStub):
    """An engine that answers every request with the same ids, one a step, and remembers what was cancelled."""

    def __init__(self, script: Sequence[int], *, step_s: float = 0.0, context_len: int = CONTEXT_LEN) -> None:
        super().__init__(step_s)
        self.max_model_len = context_len
        self.script = list(script)
        self.requests: list[Request] = []
        self.failing = False
        self.cached_len = 0
        self.drafts = (0, 0)
        """Drafted and accepted tokens of every request."""
        self.refuses: RequestError | CapacityError | None = None
        """What `add` raises."""
        self.ends: tuple[str, ErrorKind] | None = None
        """The error that ends every request after its first token."""

    def add(self, request: Request) -> None:
        self.requests.append(request)
        if self.refuses is not None:
            raise self.refuses
        script = self.script if not request.params.ignore_eos else itertools.cycle(self.script)
        self.live[request.request_id] = (request, enumerate(script))

    def pause(self, mode: PauseMode) -> list[Event]:
        self.pause_mode = mode
        names = list(self.live) if mode == "abort" else []
        return [self._end(name, (), "cancelled") for name in names]

    def update_weights(self, source: Any, version: int | None = None, checksum: str | None = None) -> WeightUpdate:
        if not Path(source).exists():
            raise CheckpointError(f"there is no checkpoint at {source}; give an existing folder")
        return self.take_content(str(source), version)

    def describe(self) -> str:
        return f"scripted: {len(self.live)} live"

    def check_laws(self) -> None: ...

    def step(self) -> list[Event]:
        time.sleep(self.step_s)
        if self.failing:
            raise RuntimeError("scripted failure")
        events: list[Event] = []
        for request_id in list(self.live):
            events += self._advance(request_id)
        return events

    def fail_all(self, error: str) -> list[Event]:
        events: list[Event] = [self._final(name, (), "error", error) for name in self.live]
        self.live.clear()
        return events

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.live), weight_version=self.version)

    def _advance(self, request_id: str) -> list[Event]:
        request, tokens = self.live[request_id]
        if request_id in self.cancelled:
            return [self._end(request_id, (), self.cancelled[request_id])]
        if request.params.max_tokens == 0:
            return [self._end(request_id, (), "length")]
        index, token = next(tokens)
        if index == 1 and self.ends is not None:
            return [self._end(request_id, (), "error", *self.ends)]
        logprobs = None
        if request.params.logprobs is not None:
            logprobs = TokenLogprobs(-0.5, tuple((token + i, -0.5 - i) for i in range(request.params.logprobs)))
        events: list[Event] = [TokenEvent(request_id, index, token, logprobs)]
        if not request.params.ignore_eos and index + 1 == len(self.script):
            return [*events, self._end(request_id, tuple(self.script), "stop")]
        if index + 1 == request.params.max_tokens:
            return [*events, self._end(request_id, tuple(self.script[: index + 1]), "length")]
        return events

    def _end(
        self,
        request_id: str,
        ids: tuple[int, ...],
        reason: FinishReason,
        error: str | None = None,
        kind: ErrorKind = "engine",
    ) -> Event:
        final = self._final(request_id, ids, reason, error, kind)
        del self.live[request_id]
        return final

    def _final(
        self,
        request_id: str,
        ids: tuple[int, ...],
        reason: FinishReason,
        error: str | None,
        kind: ErrorKind = "engine",
    ) -> FinalOutput:
        request = self.live[request_id][0]
        prompt_len = len(request.prompt_ids)
        num_scored = 0 if request.params.prompt_logprobs is None else prompt_len - 1
        routes = np.arange((prompt_len + len(ids) - 1) * 2, dtype=np.uint16).reshape(-1, 1, 2)
        return FinalOutput(
            request_id=request_id,
            token_ids=ids,
            logprobs=None,
            finish_reason=reason,
            error=error,
            error_kind=kind if reason == "error" else None,
            prompt_len=prompt_len,
            cached_len=self.cached_len,
            prompt_logprobs=(TokenLogprobs(-0.5, ()),) * num_scored,
            report=RequestReport(
                prompt_len=prompt_len,
                usable_match=self.cached_len,
                drafted=self.drafts[0],
                accepted=self.drafts[1],
                weight_versions=(self.version,),
            ),
            extras=RowExtras(routes, None) if request.params.return_routes else None,
        )


def build(engine: Engine | ScriptedEngine, config: ServerConfig) -> Service:
    """A service over an engine in a thread."""
    kept = EngineConfig(keep_routes=isinstance(engine, ScriptedEngine))
    facts = EngineFacts(engine.max_model_len, Tokenizer(TINY).vocab_size, kept, str(TINY))
    return build_service(EngineWorker(engine), facts, TINY, name="tiny", config=config)


class Running:
    """A service that runs on the current loop, with a client in front and its engine behind."""

    def __init__(self, service: Service, client: httpx.AsyncClient, engine: Any) -> None:
        self.service = service
        self.client = client
        self.engine = engine

    async def post(self, path: str, **body: object) -> httpx.Response:
        """The answer to a JSON body."""
        return await self.client.post(path, json=body)

    async def json(self, path: str, **body: object) -> dict[str, Any]:
        """The object in a good answer."""
        response = await self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    async def frames(self, path: str, **body: object) -> list[dict[str, Any]]:
        """The objects of a good stream, which must end in [DONE] once."""
        response = await self.post(path, **body, stream=True)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
        assert lines[-1] == "data: [DONE]"
        assert all(line.startswith("data: {") for line in lines[:-1])
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer(TINY)


@pytest.fixture(scope="session")
def model() -> Transformer:
    config = replace(
        ModelConfig.from_json(TINY),
        num_hidden_layers=3,
        compress_ratios=(0, 4, 128, 0),
        hidden_size=64,
        num_attention_heads=2,
        head_dim=32,
        qk_rope_head_dim=16,
        q_lora_rank=32,
        o_lora_rank=32,
        index_n_heads=2,
        index_topk=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        num_hash_layers=1,
    )
    return dummy_model(config, seed=7).freeze()


@asynccontextmanager
async def running(service: Service, engine: Engine | ScriptedEngine) -> AsyncIterator[Running]:
    app = create_app(service)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client,
    ):
        yield Running(service, client, engine)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def served(model: Transformer) -> AsyncIterator[Running]:
    """The random model behind the application."""
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=CONTEXT_LEN, debug_checks=True))
    service = build(engine, ServerConfig())
    async with running(service, engine) as up:
        yield up


class Live(Running):
    """A service behind a real socket, in a thread of its own."""

    def __init__(self, service: Service, engine: Any) -> None:
        self.service = service
        self.engine = engine
        self._ready = threading.Event()
        self.url = ""
        self.server = DrainingServer(
            create_app(service),
            service.channel,
            listener=bind(ServerConfig(port=0), next_free=False),
            drain_s=service.config.drain_s,
            ready=self._take_url,
        )
        self.thread = threading.Thread(target=self.server.serve_until_stopped, daemon=True)

    def __enter__(self) -> "Live":
        self.thread.start()
        assert self._ready.wait(20)
        self.client = httpx.AsyncClient(base_url=self.url, timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self.server.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()

    def _take_url(self, url: str) -> None:
        self.url = url
        self._ready.set()


@pytest.fixture
def live(tokenizer: Tokenizer) -> Callable[..., Live]:
    """`with live("markup", ...) as up`: as `scripted`, but over HTTP on loopback."""

    def start(markup: str, *, step_s: float = 0.0, **config: object) -> Live:
        engine = ScriptedEngine(tokenizer.encode_markup(markup), step_s=step_s)
        server = ServerConfig(**config)  # type: ignore[arg-type]
        service = build(engine, server)
        return Live(service, engine)

    return start


Script = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def scripted(tokenizer: Tokenizer) -> Script:
    """`async with scripted("markup", ...) as up`: every request is answered with the ids of that markup."""

    def start(markup: str, *, step_s: float = 0.0, **config: object) -> AbstractAsyncContextManager[Running]:
        engine = ScriptedEngine(tokenizer.encode_markup(markup), step_s=step_s)
        server = ServerConfig(**config)  # type: ignore[arg-type]
        service = build(engine, server)
        return running(service, engine)

    return start
