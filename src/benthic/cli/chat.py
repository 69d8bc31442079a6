"""`benthic chat`: a conversation in the terminal."""

from typing import TYPE_CHECKING, Annotated, Any

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
from benthic.errors import ConfigError

if TYPE_CHECKING:
    from benthic.cli.chat_partner import ChatPartner
    from benthic.cli.conversation import Conversation

_HELP = "/help lists the commands, /quit leaves (so does Ctrl-D); Ctrl-C ends an answer."


def chat(
    context: typer.Context,
    model: Model = BUNDLED,
    url: Annotated[
        str | None,
        typer.Option(help="Talk to a server there instead; its key is in BENTHIC_API_KEY.", show_default=False),
    ] = None,
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
    from benthic.cli.chat_partner import LocalPartner, RemotePartner
    from benthic.cli.conversation import Conversation

    if system is not None:
        require_unicode("--system", system)
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    chosen: dict[str, Any] = {name: value for name, value in sampling.items() if value is not None}
    check_sampling(chosen)
    conversation = Conversation(system=system, thinking=thinking, fields=chosen)
    engine = read_engine_options(context.obj)
    if url is not None:
        given = {"MODEL": model != BUNDLED, "--device": device, "--dtype": dtype, "--numerics": numerics}
        if wrong := [name for name, value in given.items() if value]:
            raise ConfigError(f"{wrong[0]} was given with --url; the server has a model already")
        _talk(RemotePartner(url), conversation)
        return
    choice = ModelChoice(model=model, device=device, dtype=dtype, numerics=numerics)
    with open_local(choice, engine=engine) as local:
        _talk(LocalPartner(local), conversation)


def _talk(partner: "ChatPartner", conversation: "Conversation") -> None:
    from benthic.cli.terminal_chat import TerminalChat

    typer.echo(f"{partner.name}: {_HELP}")
    TerminalChat(partner, conversation).run()
