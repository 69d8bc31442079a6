"""`benthic generate`: answers to prompts, one after the other on stdout."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benthic.cli.assemble import ModelChoice, open_local
from benthic.cli.options import (
    BUNDLED,
    Device,
    Dtype,
    MaxTokens,
    Numerics,
    Seed,
    Temperature,
    Thinking,
    TopP,
    check_sampling,
    read_prompts,
    require_unicode,
)
from benthic.cli.serve_options import read_engine_options
from benthic.engine.config import EngineConfig
from benthic.errors import RequestError

_RAW_MAX_TOKENS = 128


def generate(
    context: typer.Context,
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; stdin is one when there are none.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="A checkpoint folder, or a bundled name.")] = BUNDLED,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="A file with one prompt a line.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself instead of answering it.")] = False,
    thinking: Thinking = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line instead of text.")] = False,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
) -> None:
    """Answer one or more prompts and exit.

    Further options: --engine.FIELD VALUE (max_model_len, cache_bytes, num_threads, ...).
    """
    engine = read_engine_options(context.obj)
    texts = read_prompts(prompts or [], file)
    if system is not None:
        require_unicode("--system", system)
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    chosen: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    choice = ModelChoice(model=model, device=device, dtype=dtype, numerics=numerics)
    if raw:
        _continue(texts, choice, engine, chosen, as_json=as_json)
        return
    check_sampling(chosen)
    if thinking is not None:
        chosen["thinking"] = {"type": "enabled" if thinking else "disabled"}
    turns = [{"role": "system", "content": system}] if system is not None else []
    bodies = [{**chosen, "messages": [*turns, {"role": "user", "content": text}]} for text in texts]
    _answer(bodies, choice, engine, as_json=as_json)


def _answer(bodies: list[dict[str, Any]], choice: ModelChoice, engine: EngineConfig, *, as_json: bool) -> None:
    with open_local(choice, engine=engine) as local:
        for body in bodies:
            if as_json:
                typer.echo(json.dumps(local.ask([body], at_once=1)[0], ensure_ascii=False))
                continue
            for chunk in local.stream(body):
                typer.echo(_text_of(chunk), nl=False)
            typer.echo()


def _text_of(chunk: dict[str, Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


def _continue(
    texts: list[str], choice: ModelChoice, engine: EngineConfig, chosen: dict[str, Any], *, as_json: bool
) -> None:
    from benthic.engine.sampling import SamplingParams
    from benthic.llm import LLM

    params = SamplingParams(**{"max_tokens": _RAW_MAX_TOKENS, **chosen})
    where: dict[str, Any] = {"device": choice.device, "dtype": choice.dtype, "numerics": choice.numerics}
    # LLM itself refuses names it does not know.
    with LLM(choice.model, **where, **asdict(engine)) as llm:
        for text, output in zip(texts, llm.generate(list(texts), params), strict=True):
            answer = output.outputs[0]
            if answer.error is not None:
                raise RequestError(answer.error)
            line = {"prompt": text, "text": answer.text, "finish_reason": answer.finish_reason}
            typer.echo(json.dumps(line, ensure_ascii=False) if as_json else answer.text)
