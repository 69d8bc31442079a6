"""Options that several verbs share, and the text of a prompt from wherever it comes. Imports nothing heavy."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benthic.errors import ConfigError

BUNDLED = "tiny"

Model = Annotated[
    str,
    typer.Argument(help="A checkpoint folder, or the name of the bundled model.", metavar="MODEL", show_default=True),
]
Device = Annotated[
    str | None, typer.Option(help="cpu, cuda or cuda:N; the GPU where there is one.", show_default=False)
]
Dtype = Annotated[
    str | None,
    typer.Option(help="Activations: float32 or bfloat16; float32 on CPU, bfloat16 on CUDA.", show_default=False),
]
Numerics = Annotated[
    str | None,
    typer.Option(
        help="plain, or quantized for the rounding steps the released weights were trained with.", show_default=False
    ),
]
Thinking = Annotated[
    bool | None,
    typer.Option("--thinking/--no-thinking", help="Think before answering; the checkpoint's own habit when absent."),
]
Temperature = Annotated[float | None, typer.Option(help="0 takes the most likely token.", show_default=False)]
TopP = Annotated[
    float | None, typer.Option(help="Keep the most likely tokens up to this probability.", show_default=False)
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest answer, in tokens.", show_default=False)]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.", show_default=False)]


def read_prompts(arguments: list[str], file: Path | None) -> list[str]:
    """The prompts: the arguments, the lines of a file, or all of stdin as one.

    Raises:
        ConfigError: two sources at once, or none, or text that is not UTF-8.
    """
    if arguments and file is not None:
        raise ConfigError(f"a prompt ({arguments[0]!r}) and --file ({file}) were given; give one of them")
    if file is not None:
        prompts = [line for line in _decoded(file.read_bytes(), str(file)).splitlines() if line.strip()]
    elif arguments:
        prompts = arguments
    elif sys.stdin.isatty():
        raise ConfigError("no prompt was given; pass one as an argument, by --file, or on stdin")
    else:
        prompts = [_decoded(sys.stdin.buffer.read(), "stdin")]
    if not any(prompt.strip() for prompt in prompts):
        raise ConfigError("the prompt is empty; it needs at least one character")
    return [require_unicode("the prompt", prompt) for prompt in prompts]


def check_sampling(fields: Mapping[str, Any]) -> None:
    """Reads sampling fields as a chat request would, so that a wrong one is known before the model is loaded.

    Raises:
        RequestError: a field is out of range.
    """
    from benthic.text.split import split

    split("chat", {"messages": [{"role": "user", "content": "x"}], **fields})


def require_unicode(name: str, text: str) -> str:
    """`text`, unless a word of the command line was no UTF-8 (Python then smuggles its bytes in as surrogates).

    Raises:
        ConfigError: it was none.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name} is not UTF-8 text (from character {error.start} on); give it in UTF-8") from None
    return text


def _decoded(data: bytes, origin: str) -> str:
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{origin} is not UTF-8 text (byte {data[error.start]:#04x} at position {error.start}); convert it to UTF-8"
        ) from None
