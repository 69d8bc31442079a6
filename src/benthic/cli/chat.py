"""`benthic chat`: a conversation in the terminal."""

from typing import Annotated, Any

import typer

from benthic.cli.assemble import ModelChoice, open_local
from benthic.cli.options import (
    BUNDLED,
    Device,
    Dtype,
    MaxTokens,
    Model,
    Numerics,
    Seed,
    Temperature,
    Thinking,
    TopP,
    check_sampling,
    require_unicode,
)
from benthic.cli.serve_options import read_engine_options

_HELP = "/new starts over, /think turns thinking on or off, /quit leaves (so does Ctrl-D); Ctrl-C ends an answer."


def chat(
    context: typer.Context,
    model: Model = BUNDLED,
    system: Annotated[str | None, typer.Option(help="System prompt.", show_default=False)] = None,
    thinking: Thinking = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
) -> None:
    """Talk to a model in the terminal.

    Further options: --engine.FIELD VALUE (max_model_len, cache_bytes, num_threads, ...).
    """
    from benthic.cli.terminal_chat import TerminalChat

    if system is not None:
        require_unicode("--system", system)
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    chosen: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    check_sampling(chosen)
    engine = read_engine_options(context.obj)
    choice = ModelChoice(model=model, device=device, dtype=dtype, numerics=numerics)
    with open_local(choice, engine=engine) as local:
        typer.echo(f"{local.service.name}: {_HELP}")
        TerminalChat(local, system=system, thinking=thinking, sampling=chosen).run()
