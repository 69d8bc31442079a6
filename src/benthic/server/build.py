"""From an engine and a checkpoint folder to a service that answers."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benthic.engine.engine import Engine
from benthic.engine.request import Request, TokenLogprobs
from benthic.engine.sampling import SamplingParams
from benthic.engine.worker import EngineWorker
from benthic.server.channel import Channel
from benthic.server.config import ServerConfig
from benthic.server.metrics import Metrics
from benthic.server.service import Service
from benthic.text.prompt import PromptEncoder
from benthic.text.settings import read_prompt_settings
from benthic.text.tokenizer import Tokenizer

_WARM_UP_LEN = 160
"""Longer than the longest compression block, so that every kind of layer has work."""

Score = Callable[[Sequence[int], int], list[TokenLogprobs | None]]


def build_service(engine: Engine, folder: Path, *, name: str, config: ServerConfig, score: Score) -> Service:
    """A service that is not running yet: `service.channel.start()` starts the engine's thread.

    Args:
        engine: over the model of `folder`.
        folder: holds the tokenizer and the prompt settings.
        name: the model's name for clients, unless `config.served_name` gives another.
        config: limits and defaults.
        score: (ids, k) -> log-probabilities of given ids with k alternatives; called on one thread of its own.

    Raises:
        CheckpointError: the tokenizer is missing or belongs to another model.
        ConfigError: the prompt settings are wrong.
    """
    tokenizer = Tokenizer(folder)
    settings = read_prompt_settings(folder)
    if config.thinking is not None:
        settings = replace(settings, default_thinking=config.thinking)
    served_name = config.served_name or name
    metrics = Metrics()
    prompts = PromptEncoder(
        tokenizer,
        context_len=engine.max_model_len,
        settings=settings,
        served_names=(served_name,),
        is_strict=config.strict_fields,
    )
    return Service(
        config=config,
        name=served_name,
        created=int(time.time()),
        context_len=engine.max_model_len,
        tokenizer=tokenizer,
        prompts=prompts,
        channel=Channel(EngineWorker(engine), metrics, max_open=config.max_open_sequences),
        metrics=metrics,
        score=_in_own_thread(score),
    )


def warm_up(engine: Engine) -> None:
    """Answer one request before the first client does: kernels are compiled or loaded on their first use."""
    prompt = tuple(range(min(_WARM_UP_LEN, engine.max_model_len - 2)))
    params = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=1)
    engine.add(Request(request_id="warm-up", prompt_ids=prompt, params=params))
    while engine.has_work():
        engine.step()


def _in_own_thread(score: Score) -> Callable[[Sequence[int], int], Awaitable[list[TokenLogprobs | None]]]:
    """One scoring pass at a time, beside the engine; a caller that goes away leaves the queue."""
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="benthic-score")

    async def run(ids: Sequence[int], num_alternatives: int) -> list[TokenLogprobs | None]:
        return await asyncio.get_running_loop().run_in_executor(executor, score, ids, num_alternatives)

    return run
