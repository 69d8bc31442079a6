"""From an engine and a checkpoint folder to a service that answers."""

import time
from dataclasses import replace
from pathlib import Path

from benthic import __version__
from benthic.engine.handle import EngineHandle
from benthic.engine.messages import EngineFacts
from benthic.server.cache_watch import CacheWatch
from benthic.server.channel import Channel
from benthic.server.config import ServerConfig
from benthic.server.intake import Intake
from benthic.server.metrics import Metrics
from benthic.server.service import Service
from benthic.text.grammar_service import GrammarService
from benthic.text.prompt import PromptEncoder
from benthic.text.settings import read_prompt_settings
from benthic.text.tokenizer import Tokenizer


def build_service(
    engine: EngineHandle, facts: EngineFacts, folder: Path, *, name: str, config: ServerConfig
) -> Service:
    """A service that is not running yet: `service.channel.start()` takes the engine's events.

    Args:
        engine: over the model of `folder`, in a thread or a process.
        facts: what it says of itself.
        folder: holds the tokenizer and the prompt settings.
        name: the model's name for clients, unless `config.served_name` gives another.
        config: limits and defaults.

    Raises:
        CheckpointError: the tokenizer is missing or belongs to another model.
        ConfigError: the prompt settings are wrong.
    """
    tokenizer = Tokenizer(folder)
    settings = read_prompt_settings(folder)
    if config.thinking is not None:
        settings = replace(settings, default_thinking=config.thinking)
    served_name = config.served_name or name
    metrics = Metrics(facts.config.page_size)
    metrics.introduce(version=__version__, model=served_name, device=facts.start.device)
    metrics.weight_load_s.set(facts.start.weight_load_s)
    prompts = PromptEncoder(
        tokenizer,
        context_len=facts.max_model_len,
        settings=settings,
        served_names=(served_name,),
        is_strict=config.strict_fields,
    )
    return Service(
        config=config,
        name=served_name,
        created=int(time.time()),
        facts=facts,
        tokenizer=tokenizer,
        prompts=prompts,
        grammars=GrammarService(
            tokenizer.path,
            timeout_s=config.grammar_timeout_s,
            cache_size=config.grammar_cache_size,
            observe=metrics.grammar_s.observe,
        ),
        channel=Channel(engine, metrics, max_open=config.max_open_sequences, cache_watch=CacheWatch(facts.config)),
        metrics=metrics,
        intake=Intake(config.max_buffered_bytes),
    )
