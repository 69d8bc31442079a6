"""A word to whoever waits while CPU kernels are compiled, which happens on a machine's first start only."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

NOTICE = "compiling CPU kernels, once: up to half a minute ..."


class CompilationNotice(AbstractContextManager["CompilationNotice"]):
    """Says NOTICE, once in its life, as soon as a kernel is compiled while it is entered; nothing where all come from
    the cache. It may be entered again and again, by one thread at a time.

    Args:
        say: gets the text.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._exits = ExitStack()
        self.has_spoken = False

    def __enter__(self) -> Self:
        if not self.has_spoken:
            from numba.core import event

            self._exits.enter_context(event.install_listener("numba:compile", _listener(self._speak)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def _speak(self) -> None:
        if not self.has_spoken:
            self.has_spoken = True
            self._say(NOTICE)


def _listener(speak: Callable[[], None]) -> object:
    from numba.core import event

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            speak()

        def on_end(self, event: object) -> None:
            pass

    return Listener()
