"""Reading what a person types: a history that outlives the session, completion, and messages of several lines."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benthic.errors import ConfigError

_QUOTES = '"""'
_MOST_LINES = 2000


def history_file() -> Path:
    """Where the history lies: below $XDG_STATE_HOME, or ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "benthic" / "history"


class LineEditor:
    """Reads messages.

    A line that ends in a backslash goes on in the next one; so does everything between two lines that are or begin and
    end with three double quotes.

    Args:
        commands: words that Tab completes at the beginning of a line.
        read_line: shows a prompt and gives a line without its end; raises EOFError at the end of input.
    """

    def __init__(self, commands: Sequence[str], read_line: Callable[[str], str]) -> None:
        self._commands = sorted(commands)
        self._read_line = read_line
        self._has_history = sys.stdin.isatty() and self._open_history()

    def read(self, prompt: str, more: str) -> str:
        """The next message, stripped; `more` prompts for its further lines.

        Raises:
            EOFError: the input is at its end.
            KeyboardInterrupt: the person wants to leave.
        """
        first = self._read_line(prompt)
        if first.lstrip().startswith(_QUOTES):
            return self._quoted(first.lstrip()[len(_QUOTES) :], more)
        lines = [first]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._read_line(more))
        return "\n".join(lines).strip()

    def close(self) -> None:
        """Keep the history."""
        if self._has_history:
            import readline

            with suppress(OSError):  # a read-only home: there is no history then
                history_file().parent.mkdir(parents=True, exist_ok=True)
                readline.set_history_length(_MOST_LINES)
                readline.write_history_file(history_file())

    def complete(self, word: str, number: int) -> str | None:
        """The number-th command that begins with `word`; None after the last."""
        found = [command for command in self._commands if word.startswith("/") and command.startswith(word)]
        return found[number] if number < len(found) else None

    def _quoted(self, rest: str, more: str) -> str:
        lines = [rest]
        while not lines[-1].rstrip().endswith(_QUOTES):
            lines.append(self._read_line(more))
        lines[-1] = lines[-1].rstrip()[: -len(_QUOTES)]
        return "\n".join(lines).strip()

    def _open_history(self) -> bool:
        try:
            import readline
        except ImportError:
            return False
        readline.set_completer(self.complete)
        readline.set_completer_delims(" \t\n")
        readline.parse_and_bind("tab: complete")
        with suppress(OSError):  # the first time, or not readable
            readline.read_history_file(history_file())
        return True


def not_utf8(error: UnicodeDecodeError) -> ConfigError:
    """What to say when a terminal sends other bytes."""
    return ConfigError(f"stdin is not UTF-8 text ({error.reason}); set the terminal to UTF-8")
