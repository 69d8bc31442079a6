"""From a checkpoint to an engine that has answered once: what a child process does before it is ready."""

import logging
import os
import time
from collections.abc import Callable
from itertools import chain, repeat

from benthic.cache.memory import available_bytes
from benthic.engine.cpu import prepare_products
from benthic.engine.engine import Engine
from benthic.engine.factory import BuiltEngine
from benthic.engine.messages import EngineFacts, EngineSpec
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.start_report import StartReport, features_of
from benthic.kernels.compiling import announced_compilation
from benthic.models.checkpoint.load import load_model, resolve
from benthic.models.checkpoint.placement import chosen_device, chosen_dtype

_WARM_UP_LEN = 160
"""Longer than the longest compression block, so that every kind of layer has work."""
SMALL_BYTES = 256 << 20
"""Of a checkpoint whose engine may be built twice."""
SPARE_BYTES = 2 << 30
"""What a machine must have left for that: a system that runs out of memory may end the wrong one of the two."""

logger = logging.getLogger(__name__)


def build_engine(spec: EngineSpec) -> BuiltEngine:
    """Loads the checkpoint and makes a warm engine over it.

    Raises:
        ConfigError: a setting is wrong or does not fit the model.
        CheckpointError: the checkpoint cannot be loaded.
    """
    prepare_products(spec.engine.num_threads)
    place, dtype = chosen_device(spec.device), chosen_dtype(spec.dtype)
    folder = resolve(spec.model)
    began_s = time.monotonic()
    with announced_compilation(lambda: logger.warning("compiling CPU kernels, once: up to half a minute ...")):
        model = load_model(
            folder, device=place, dtype=dtype, numerics=spec.numerics, weights=spec.engine.weights
        ).freeze()
        loaded_s = time.monotonic()
        masks = None if spec.masks is None else spec.masks(str(folder), model.config.vocab_size)
        engine = Engine(model, spec.engine, measures_pass=True, masks=masks)
        warmed = warm_up(engine)
    facts = EngineFacts(
        max_model_len=engine.max_model_len,
        vocab_size=model.config.vocab_size,
        config=spec.engine,
        folder=str(folder),
        budget="\n".join(engine.budget.lines()) if engine.budget is not None else "",
        pid=os.getpid(),
        start=StartReport(
            device=str(model.device),
            features=features_of(model, spec.engine, engine.overlap_steps),
            warmed=warmed,
            weight_load_s=loaded_s - began_s,
            warm_up_s=time.monotonic() - loaded_s,
        ),
    )
    return BuiltEngine(engine, facts)


def build_small_engine(spec: EngineSpec) -> BuiltEngine | None:
    """What a process that stands by holds: on CPU the engine of a small model, which needs no second memory to speak
    of; else nothing but what this module imports."""
    folder = resolve(spec.model)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    device = chosen_device(spec.device)
    if device.type != "cpu" or size > SMALL_BYTES or available_bytes(device) < SPARE_BYTES:
        return None
    return build_engine(spec)


def warm_up(engine: Engine) -> tuple[str, ...]:
    """Captures passes and answers one request before the first client does: kernels are compiled on their first use.

    Returns:
        What ran, for people.
    """
    warmed: list[str] = []
    announce = _progress()

    def say(text: str) -> None:
        announce(text)
        warmed.append(text)

    engine.warm_up(say)
    prompt = tuple(range(min(_WARM_UP_LEN, engine.max_model_len - 2)))
    params = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=1)
    engine.add(Request(request_id="warm-up", prompt_ids=prompt, params=params))
    while engine.has_work():
        engine.step()
    engine.flush()
    warmed.append(f"a prompt of {len(prompt)} tokens and 2 decoded ones")
    logger.info("warmed up: %s", warmed[-1])
    return tuple(warmed)


def _progress() -> Callable[[str], None]:
    """Says the first thing to whoever waits, and the others to those who read along."""
    levels = chain([logging.WARNING], repeat(logging.INFO))
    return lambda text: logger.log(next(levels), "%s", text)
