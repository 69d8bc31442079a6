"""Commands, functions and answers between a handle's arguments and the records that travel."""

import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benthic.sandbox.errors import CommandTimeout
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.records import CallResult, Command, FunctionCall, Reason, Result
from benthic.sandbox.wire import decode, encode, unpack_error, unpack_result

CommandLike = str | Sequence[str] | Command
"""A string is given to the shell; a sequence is a program with its arguments; nothing is guessed."""


def as_command(
    command: CommandLike, *, env: dict[str, str] | None = None, stdin: bytes | str = b"", **facts: Any
) -> Command:
    """The record of a command: see `CommandLike`."""
    if isinstance(command, Command):
        return command
    more = {"env": tuple((env or {}).items()), "stdin": stdin.encode() if isinstance(stdin, str) else stdin, **facts}
    if isinstance(command, str):
        return Command(shell=command, **more)
    if not isinstance(command, Sequence) or not all(isinstance(word, str) for word in command):
        raise ValueError(
            f"a command is text for a shell, or a sequence of texts to run without one, and not {command!r}"
        )
    return Command(argv=tuple(command), **more)


def command_request(command: Command) -> Request:
    """The logged call that runs a command."""
    return Request(verb="exec", arguments=encode(replace(command, stdin=b"")), data=command.stdin)


def value_of(answer: Answer) -> dict[str, Any]:
    """An answer's value; raises the error that it carries."""
    if answer.error is not None:
        raise unpack_error(answer)
    return answer.value


def result_of(answer: Answer) -> Result:
    """A command's result; raises what stands in its place.

    Raises:
        CommandTimeout: it was ended for its time or its silence.
    """
    result = unpack_result(value_of(answer), answer.data)
    result = replace(result, seq=answer.seq, is_replayed=answer.is_replayed)
    if result.reason is Reason.TIMEOUT:
        raise CommandTimeout(f"the command was ended after {result.duration_s:.1f} s, its time limit", result)
    if result.reason is Reason.QUIET:
        raise CommandTimeout(f"the command was ended after {result.duration_s:.1f} s, having been silent", result)
    return result


def function_request(
    function: Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout_s: float | None
) -> Request:
    """The logged call that calls a function.

    Raises:
        ValueError: it needs more than its own source.
    """
    source, name = _source(function)
    call = FunctionCall(source=source, name=name, args=args, kwargs=kwargs, timeout_s=timeout_s)
    return Request(verb="call", arguments=encode(call))


def call_result_of(answer: Answer) -> CallResult:
    """What a function call came to."""
    value = dict(value_of(answer))
    cut = value.pop("num_stdout_bytes", 0)
    result = replace(decode(CallResult, value), stdout=answer.data[:cut], stderr=answer.data[cut:])
    return replace(result, seq=answer.seq, is_replayed=answer.is_replayed)


def _source(function: Callable[..., Any] | str) -> tuple[str, str]:
    if isinstance(function, str):
        return function, "main"
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise ValueError(f"{function!r} has no source to send ({error}); pass the source, which defines main") from None
    if function.__name__ == "<lambda>" or function.__closure__:
        raise ValueError(f"{function!r} needs more than its own source; pass a plain function, or source")
    return source, function.__name__
