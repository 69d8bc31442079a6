"""`benthic serve`: an OpenAI-compatible server for one model."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benthic.cli.assemble import ModelChoice, open_service
from benthic.cli.options import BUNDLED, Device, Dtype, Model, Numerics
from benthic.cli.serve_options import read_serve_options
from benthic.server.listen import bind
from benthic.telemetry import START, LogFormat, log_to_stderr

_QUESTION = "What is 347 + 285?"
_BEGINNING = "347 + 285 ="


def serve(
    context: typer.Context,
    model: Model = BUNDLED,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with tables [server] and [engine]; options beat it.", metavar="FILE"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on, 127.0.0.1 unless given; 0.0.0.0 for the whole network.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="TCP port, 8000 unless given; 0 for any free one.", show_default=False)
    ] = None,
    next_free_port: Annotated[
        bool, typer.Option("--next-free-port", help="Take the next free port when it is busy.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Model name for clients.", show_default=False)] = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
) -> None:
    """Serve a model over HTTP to OpenAI's and Anthropic's clients.

    Further options: --engine.FIELD VALUE (max_num_seqs, max_model_len, cache_bytes, ...) and --server.FIELD VALUE
    (api_key, admin_key, max_body_bytes, max_open_sequences, thinking, ...); docs/configuration.md lists them.
    BENTHIC_API_KEY and BENTHIC_ADMIN_KEY set the keys without showing them.
    """
    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "served_name": name,
        "api_key": os.environ.get("BENTHIC_API_KEY"),
        "admin_key": os.environ.get("BENTHIC_ADMIN_KEY"),
    }
    options = read_serve_options(given, context.obj, config)
    log_to_stderr(options.server.log_format)
    # The port is taken before torch is imported and the model loaded: a busy one is reported at once.
    listener = bind(options.server, next_free=next_free_port)
    say = _sayer(options.server.log_format)
    say(f"loading {model} ...")
    from benthic.server.app import create_app
    from benthic.server.launch import DrainingServer
    from benthic.server.summary import features_of_server

    choice = ModelChoice(model=model, device=device, dtype=dtype, numerics=numerics)
    service = open_service(choice, server=options.server, engine=options.engine)
    if service.facts.budget:
        say(service.facts.budget)
    for feature in features_of_server(service):
        say(feature.line())
    has_key = bool(options.server.all_api_keys)
    DrainingServer(
        create_app(service),
        service,
        listener=listener,
        ready=lambda url: _announce(
            url, service.name, has_key=has_key, has_chat=service.prompts.has_chat, has_page=options.server.playground
        ),
    ).serve_until_stopped()


def _sayer(log_format: LogFormat) -> Callable[[str], object]:
    """What is said on stderr while a server starts; a log for machines holds nothing but lines of its own form."""
    if log_format == "json":
        return logging.getLogger(START).info
    return lambda text: typer.echo(text, err=True)


def _announce(url: str, name: str, *, has_key: bool, has_chat: bool, has_page: bool) -> None:
    route = "chat/completions" if has_chat else "completions"
    asked = {"messages": [{"role": "user", "content": _QUESTION}]} if has_chat else {"prompt": _BEGINNING}
    body = json.dumps({"model": name, **asked})
    key = ' -H "authorization: Bearer $BENTHIC_API_KEY"' if has_key else ""
    page = f"In a browser:  {url}\n\n" if has_page else ""
    typer.echo(f"{name} is ready at {url}  (OpenAI base URL {url}/v1; Ctrl-C ends it)\n\n{page}Try it:\n")
    typer.echo(f"  curl {url}/v1/{route} -H 'content-type: application/json'{key} -d '{body}'\n")
