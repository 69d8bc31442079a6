"""The loop of `benthic chat`: read a message, stream the answer, keep the conversation."""

import time
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from benthic.cli.chat_commands import COMMANDS, run_command
from benthic.cli.chat_partner import ChatPartner
from benthic.cli.conversation import Conversation
from benthic.cli.line_editor import LineEditor, not_utf8
from benthic.cli.options import require_unicode
from benthic.errors import BenthicError
from benthic.server.errors import ApiError

_THOUGHT = "dim italic"
_PROMPT, _MORE = "> ", "| "


@dataclass
class Totals:
    """What a session has taken so far."""

    answers: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def shown(self) -> str:
        """For people."""
        if not self.answers:
            return "No answer yet."
        share = self.cached_tokens / max(1, self.prompt_tokens)
        speed = _rate(self.tokens, self.seconds)
        return (
            f"{self.answers} answers, {self.tokens} tokens in {self.seconds:.1f} s ({speed}); "
            f"{self.prompt_tokens} prompt tokens, {share:.0%} of them from the cache"
        )


class TerminalChat:
    """One session.

    Args:
        partner: who answers.
        conversation: where it begins.
    """

    def __init__(self, partner: ChatPartner, conversation: Conversation) -> None:
        self.conversation = conversation
        self._totals = Totals()
        self._partner = partner
        self._console = Console(highlight=False)
        self._editor = LineEditor(list(COMMANDS), self._read_line)

    def run(self) -> None:
        """Until /quit or the end of input."""
        try:
            while True:
                message = self._editor.read(_PROMPT, _MORE)
                try:
                    if message.startswith("/"):
                        run_command(self, message)
                    elif message:
                        self.answer(message)
                except (BenthicError, ApiError, OSError) as error:
                    self._complain(str(error))
        except (EOFError, KeyboardInterrupt):
            self._console.print()
        finally:
            self._editor.close()

    def answer(self, question: str) -> None:
        """Ask, and show the answer as it comes. A question that fails is not kept.

        Raises:
            BenthicError, ApiError: it failed.
        """
        require_unicode("this line", question)
        turns = self.conversation.turns
        turns.append({"role": "user", "content": question})
        said: dict[str, str] = {"reasoning_content": "", "content": ""}
        usage: dict[str, Any] = {}
        start = time.monotonic()
        body = {**self.conversation.body(), "stream_options": {"include_usage": True}}
        try:
            with closing(self._partner.stream(body)) as chunks:
                for chunk in chunks:
                    usage = chunk.get("usage") or usage
                    self._show(chunk, said)
        except KeyboardInterrupt:
            self.say(" (ended)")
        except BaseException:
            turns.pop()
            raise
        self._console.print()
        turns.append({"role": "assistant", **{name: text for name, text in said.items() if text or name == "content"}})
        self._account(usage, time.monotonic() - start)

    def say(self, text: str) -> None:
        """Something of the program's own."""
        self._console.print(Text(text, style="dim"))

    def stats(self) -> str:
        """What the session has taken so far, for people."""
        return self._totals.shown()

    def clear_screen(self) -> None:
        """Nothing where the output is no terminal."""
        self._console.clear()

    def _show(self, chunk: dict[str, Any], said: dict[str, str]) -> None:
        for choice in chunk["choices"]:
            for name, style in (("reasoning_content", _THOUGHT), ("content", "")):
                text = choice["delta"].get(name)
                if text:
                    if name == "content" and said["reasoning_content"] and not said["content"]:
                        self._console.print()
                    said[name] += text
                    self._console.print(Text(text, style=style), end="", soft_wrap=True)

    def _account(self, usage: dict[str, Any], seconds: float) -> None:
        tokens = usage.get("completion_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        totals = self._totals
        totals.answers += 1
        totals.tokens += tokens
        totals.seconds += seconds
        totals.prompt_tokens += usage.get("prompt_tokens", 0)
        totals.cached_tokens += details.get("cached_tokens") or 0
        if tokens and self._console.is_terminal:
            self.say(f"{tokens} tokens, {_rate(tokens, seconds)}")

    def _read_line(self, prompt: str) -> str:
        try:
            # A prompt by input() itself: readline must know its width.
            return input(prompt) if self._console.is_terminal else input()
        except UnicodeDecodeError as error:
            raise not_utf8(error) from None

    def _complain(self, message: str) -> None:
        self._console.print(Text(f"error: {message}", style="red"))


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / max(seconds, 1e-9):.0f} tokens/s"
