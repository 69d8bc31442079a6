"""The whole way with checkpoints before V4: a folder is opened, served and trained, and one of our peers is read."""

import random
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from benthic import LLM, SamplingParams
from benthic.engine.build import build_engine
from benthic.engine.config import EngineConfig
from benthic.engine.messages import EngineSpec
from benthic.engine.worker import EngineWorker
from benthic.models.checkpoint import load_model
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from benthic.train import GeneratedSource, Item, StageConfig, TrainConfig, Trainer
from benthic.train.config import SaveConfig
from benthic.train.metrics import read_metrics
from benthic.train.schedule import ScheduleConfig
from tests.exactness.families import FAMILIES, PAGE
from tests.journeys.family_folders import VOCAB, add_tokenizer, family_config, peer_of, write_folder
from tests.server.conftest import Running, running

EACH_FAMILY = pytest.mark.parametrize("name", FAMILIES)
BUDGETS: dict[str, Any] = {"page_size": PAGE, "cache_bytes": 1 << 24, "max_num_seqs": 4, "max_model_len": 256}
TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is <｜User｜>?"},
    {"role": "assistant", "content": "A token."},
    {"role": "user", "content": "Why?"},
]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: write_folder(tmp_path_factory.mktemp("family") / name, name) for name in FAMILIES}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@EACH_FAMILY
def test_a_folder_opens_as_a_model_that_answers_and_scores(folders: dict[str, Path], name: str) -> None:
    with LLM(folders[name], dtype="float32", **BUDGETS) as llm:
        [answer] = llm.generate(["2 + 2 ="], SamplingParams(max_tokens=12, temperature=0, logprobs=1, ignore_eos=True))
        reply = answer.outputs[0]
        scores = llm.score([*answer.prompt_token_ids, *reply.token_ids])
        assert scores[-12:].tolist() == reply.logprobs
        assert (
            "".join(llm.stream("2 + 2 =", SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))) == reply.text
        )


def running_folder(folder: Path, name: str) -> AbstractAsyncContextManager[Running]:
    """A service over an engine in a thread, started as a child process would start it."""
    spec = EngineSpec(model=str(folder), engine=EngineConfig(**BUDGETS), device="cpu", dtype="float32")
    built = build_engine(spec)
    service = build_service(EngineWorker(built.engine), built.facts, folder, name=name, config=ServerConfig())
    return running(service, built.engine)


@pytest.mark.anyio
@EACH_FAMILY
async def test_a_folder_is_served_and_streams_a_chat(folders: dict[str, Path], name: str) -> None:
    ask = {"messages": TALK, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    async with running_folder(folders[name], name) as up:
        whole = await up.json("/v1/chat/completions", **ask)
        frames = await up.frames("/v1/chat/completions", **ask)
        said = "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames)
        assert said == whole["choices"][0]["message"]["content"] != ""
        refused = await up.post("/v1/chat/completions", **ask, tools=[TOOL])
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
        plain = await up.json("/v1/completions", prompt=whole["prompt_token_ids"], max_tokens=24, temperature=0)
        assert plain["usage"]["prompt_tokens"] == len(whole["prompt_token_ids"])
    with LLM(folders[name], dtype="float32", **BUDGETS) as llm:
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        [answer] = llm.generate([whole["prompt_token_ids"]], params)
    assert answer.outputs[0].token_ids == whole["choices"][0]["token_ids"]


def counting(seed: int) -> Iterator[Item]:
    """Documents that count upwards from anywhere: learnable in a few steps."""
    rng = random.Random(seed)
    while True:
        start, length = rng.randrange(16), rng.randint(4, 30)
        yield Item([(start + i) % 16 for i in range(length)], [1.0] * length, "count")


@EACH_FAMILY
def test_a_folder_learns_and_its_result_opens_again(folders: dict[str, Path], name: str, tmp_path: Path) -> None:
    stage = StageConfig(mixture="", tokens=16 * 96, rows=96, max_blocks=40, max_len=32)
    config = TrainConfig(
        model=str(folders[name]),
        output=str(tmp_path),
        stages={"only": stage},
        log_every=1,
        schedule=ScheduleConfig(peak=0.01, warmup_steps=3),
        save=SaveConfig(with_weights=False),
    )
    model = load_model(folders[name], device="cpu", dtype=torch.float32)
    source = GeneratedSource(counting, stage.layout(1), seed=0, batches_per_block=2)
    Trainer(model, {"only": source}, config).run()
    losses = [line["next_token"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert losses[-1] < 0.6 * losses[0]
    assert load_model(tmp_path / "final", device="cpu").config == model.config


@pytest.mark.parametrize("name", ["V2", "V3", "V3.2"])
def test_a_folder_that_transformers_saved_continues_as_transformers_does(name: str, tmp_path: Path) -> None:
    theirs = peer_of(family_config(name), seed=5)
    theirs.save_pretrained(tmp_path)
    add_tokenizer(tmp_path, name)
    prompt = [0, *random.Random(1).sample(range(2, VOCAB), 20)]
    expected = theirs.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=VOCAB)[0]
    with LLM(tmp_path, dtype="float32", **BUDGETS) as llm:
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        [answer] = llm.generate([prompt], params)
    assert answer.outputs[0].token_ids == expected[len(prompt) :].tolist()
