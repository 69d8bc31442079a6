"""A service over a tiny random model, and one whose engine says what a test wants it to say."""

import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.messages import EngineFacts
from benthic.engine.worker import EngineWorker
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.models.transformer import Transformer
from benthic.server.app import create_app
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from benthic.server.launch import DrainingServer
from benthic.server.listen import bind
from benthic.server.service import Service
from benthic.text.grammar_masks import grammar_masks
from benthic.text.tokenizer import Tokenizer
from tests.server.scripted_engine import CONTEXT_LEN, TINY, Sayings, ScriptedEngine

MASKS = grammar_masks(str(TINY), Tokenizer(TINY).vocab_size)


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
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=CONTEXT_LEN, debug_checks=True), masks=MASKS)
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
            service,
            listener=bind(ServerConfig(port=0), next_free=False),
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

    def start(said: Sayings, *, step_s: float = 0.0, context_len: int = CONTEXT_LEN, **config: object) -> Live:
        engine = ScriptedEngine(said, tokenizer=tokenizer, step_s=step_s, context_len=context_len)
        server = ServerConfig(**config)  # type: ignore[arg-type]
        service = build(engine, server)
        return Live(service, engine)

    return start


Script = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def scripted(tokenizer: Tokenizer) -> Script:
    """`async with scripted("markup", ...) as up`: every request is answered with the ids of that markup, or as
    `scripted_engine` says."""

    def start(
        said: Sayings, *, step_s: float = 0.0, context_len: int = CONTEXT_LEN, **config: object
    ) -> AbstractAsyncContextManager[Running]:
        engine = ScriptedEngine(said, tokenizer=tokenizer, step_s=step_s, context_len=context_len)
        server = ServerConfig(**config)  # type: ignore[arg-type]
        service = build(engine, server)
        return running(service, engine)

    return start
