"""`benthic plan`: what a model will cost to hold, to compute and to talk to, before there is a machine or a file."""

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from benthic.errors import ConfigError

HARDWARE = "h200x8"


def plan(
    model: Annotated[str, typer.Argument(help="A released model by name, or a checkpoint folder.", metavar="MODEL")],
    hardware: Annotated[
        list[str] | None, typer.Option(help=f"Devices and how many, e.g. {HARDWARE}; may be repeated.")
    ] = None,
    context: Annotated[
        list[str] | None, typer.Option(help="Tokens of a conversation, e.g. 128K; may be repeated.")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Conversations at once.")] = 64,
    dtype: Annotated[str, typer.Option(help="Weights: official, fp8, bf16 or fp32.")] = "official",
    cache: Annotated[
        str | None, typer.Option(help="Conversation state: official, bf16 or fp32.", show_default=False)
    ] = None,
    draft: Annotated[str, typer.Option(help="none, or mtp: the model's own block guesses a token.")] = "none",
    compare: Annotated[list[str] | None, typer.Option(help="Another model beside it; may be repeated.")] = None,
    ceilings: Annotated[str, typer.Option(help="measured where known, or datasheet.")] = "measured",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw a figure (.svg, .png, .pdf); needs matplotlib.")] = None,
) -> None:
    """Print what a model costs to hold, compute and talk to."""
    contexts = tuple(dict.fromkeys(length for words in context or () for length in read_lengths(words)))
    from benthic import plan as planning

    if plot is not None:
        from benthic.bench.plot import check_plotting

        check_plotting(plot)
    subject = planning.subject(model)
    machines = [planning.parse_machine(word) for words in hardware or [HARDWARE] for word in words.split(",")]
    choices = planning.Choices(
        machines=tuple(machines),
        contexts=contexts or planning.default_contexts(subject),
        formats=planning.formats_for(subject, dtype, cache, draft),
        concurrency=concurrency,
        source=planning.source_named(ceilings),
    )
    found = planning.plan(subject, choices, tuple(compare or ()))
    if plot is not None:
        from benthic.plan.plot import plot as draw

        draw(found, plot)
    typer.echo(json.dumps(planning.record(found), indent=2) if as_json else planning.report(found))


def read_lengths(words: str) -> list[int]:
    """`4096,128K,1M` -> token counts; K is 1024 and M its square.

    Raises:
        ConfigError: a word is none.
    """
    units = {"": 1, "K": 1 << 10, "M": 1 << 20}
    lengths = []
    for word in words.split(","):
        match = re.fullmatch(r"([0-9]+)([KM]?)", word.strip().upper())
        if match is None or not int(match[1]):
            raise ConfigError(f"the context is {word!r}; it must be a number of tokens such as 4096, 128K or 1M")
        lengths.append(int(match[1]) * units[match[2]])
    return lengths
