"""The loop of `benthic chat`: read a line, stream the answer, keep the conversation."""

from typing import Any

from rich.console import Console
from rich.text import Text

from benthic.cli.options import require_unicode
from benthic.errors import BenthicError, ConfigError
from benthic.server.errors import ApiError
from benthic.server.local import LocalService

_THOUGHT = "dim italic"


class TerminalChat:
    """One conversation.

    Args:
        local: the model.
        system: system prompt, if any.
        thinking: None leaves it to the checkpoint.
        sampling: chat fields that go with every request.
    """

    def __init__(
        self, local: LocalService, *, system: str | None, thinking: bool | None, sampling: dict[str, Any]
    ) -> None:
        self._local = local
        self._opening = [{"role": "system", "content": system}] if system is not None else []
        self._thinking = thinking
        self._sampling = sampling
        self._turns: list[dict[str, Any]] = []
        self._console = Console(highlight=False)

    def run(self) -> None:
        """Until /quit or the end of input."""
        while True:
            try:
                line = self._console.input("[bold green]> [/]").strip()
            except (EOFError, KeyboardInterrupt):
                self._console.print()
                return
            except UnicodeDecodeError as error:
                raise ConfigError(f"stdin is not UTF-8 text ({error.reason}); set the terminal to UTF-8") from None
            if line == "/quit":
                return
            if line.startswith("/"):
                self._command(line)
            elif line:
                self._answer(line)

    def _command(self, line: str) -> None:
        if line == "/new":
            self._turns = []
            self._say("A new conversation.")
        elif line == "/think":
            is_on = self._local.service.prompts.settings.default_thinking if self._thinking is None else self._thinking
            self._thinking = not is_on
            self._say(f"Thinking is {'on' if self._thinking else 'off'}.")
        else:
            self._say(f"{line} is unknown; the commands are /new, /think and /quit.")

    def _answer(self, question: str) -> None:
        self._turns.append({"role": "user", "content": question})
        said: dict[str, str] = {"reasoning_content": "", "content": ""}
        try:
            require_unicode("this line", question)
            for chunk in self._local.stream(self._body()):
                self._show(chunk, said)
        except KeyboardInterrupt:
            self._say("(ended)")
        except (BenthicError, ApiError) as error:
            self._console.print(Text(f"error: {error}", style="red"))
            self._turns.pop()
            return
        self._console.print()
        self._turns.append({"role": "assistant", **said})

    def _body(self) -> dict[str, Any]:
        body = {"messages": [*self._opening, *self._turns], **self._sampling}
        if self._thinking is not None:
            body["thinking"] = {"type": "enabled" if self._thinking else "disabled"}
        return body

    def _show(self, chunk: dict[str, Any], said: dict[str, str]) -> None:
        for choice in chunk["choices"]:
            for name, style in (("reasoning_content", _THOUGHT), ("content", "")):
                text = choice["delta"].get(name)
                if text:
                    if name == "content" and said["reasoning_content"] and not said["content"]:
                        self._console.print()
                    said[name] += text
                    self._console.print(Text(text, style=style), end="", soft_wrap=True)

    def _say(self, text: str) -> None:
        self._console.print(Text(text, style="dim"))
