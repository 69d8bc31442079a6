"""`benthic VERB`: one file a verb, parsed first, imported after.

Nothing here or at the top of a verb's file imports torch, so `--help` answers at once. A user's mistake is one red
line on stderr and exit code 2, a defect of Benthic one with exit code 70; tracebacks are for those who ask (--debug).
"""

import os
import sys
from itertools import takewhile
from typing import Annotated

import typer

from benthic import __version__
from benthic.cli.bench import bench
from benthic.cli.chat import chat
from benthic.cli.convert import convert
from benthic.cli.doctor import doctor
from benthic.cli.evaluate import evaluate
from benthic.cli.generate import generate
from benthic.cli.inspect import inspect
from benthic.cli.leaves import separate_leaves
from benthic.cli.plan import plan
from benthic.cli.sandbox import sandbox
from benthic.cli.serve import serve
from benthic.cli.train import train
from benthic.errors import BenthicError, ConfigError
from benthic.server.errors import ApiError

USER_MISTAKE = 2
DEFECT = 70
INTERRUPTED = 130
TAKE_LEAVES = frozenset({"serve", "chat", "generate", "train", "eval", "bench"})
"""Verbs that read options such as --engine.max_num_seqs; the others refuse them."""

app = typer.Typer(
    name="benthic",
    help="The DeepSeek-V4 system in one readable package: serve it, talk to it, train it.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error happened.")] = False,
) -> None:
    """Print the version, or the help when no verb is named."""
    if version:
        typer.echo(f"benthic {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    if context.obj and context.invoked_subcommand not in TAKE_LEAVES:
        verb = f"benthic {context.invoked_subcommand or ''}".strip()
        raise ConfigError(f"no such option {context.obj[0].partition('=')[0]}; `{verb} --help` lists those there are")


app.command()(serve)
app.command()(chat)
app.command()(generate)
app.command()(train)
app.command("eval")(evaluate)
app.command()(convert)
app.command()(inspect)
app.command()(plan)
app.command()(doctor)
app.add_typer(bench)
app.add_typer(sandbox)


def main() -> None:
    """Entry point of the `benthic` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. `--debug` before the verb lets errors show where they happened."""
    if "--debug" in takewhile(lambda word: word.startswith("-"), arguments):
        return _run(arguments)
    try:
        return _run_kindly(arguments)
    except Exception as error:  # noqa: BLE001  the last place where anybody could explain it
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        _complain(f"a defect of Benthic: {what}; `benthic --debug ...` shows where it happened")
        return DEFECT


def _run(arguments: list[str]) -> int:
    own, leaves = separate_leaves(arguments)
    return app(own, prog_name="benthic", standalone_mode=False, obj=leaves) or 0


def _run_kindly(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except typer.TyperException as error:
        return _complain(error.format_message())
    except (BenthicError, ApiError) as error:
        return _complain(str(error))
    except BrokenPipeError:
        # The reader of our output left (`| head`); a second failing flush at exit would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _complain(str(error) if error.filename is None else f"{error.filename}: {error.strerror}")
    except UnicodeDecodeError as error:
        return _complain(f"the input is not UTF-8 text ({error}); convert it to UTF-8")
    except MemoryError as error:
        return _complain(f"memory is exhausted ({error}); use a smaller model, --engine.cache_bytes or batch")
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("", err=True)
        return INTERRUPTED


def _complain(message: str) -> int:
    line = " ".join(message.split())
    typer.secho(f"error: {line}", fg=typer.colors.RED, err=True)
    return USER_MISTAKE
