"""A word to whoever waits while CPU kernels are compiled, which happens on a machine's first start only."""

import logging
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Self

from benthic.kernels.compiling import announced_compilation

NOTICE = "compiling CPU kernels, once: up to half a minute ..."

logger = logging.getLogger(__name__)


class CompilationNotice(AbstractContextManager["CompilationNotice"]):
    """Logs NOTICE, once in its life, as soon as a kernel is compiled while it is entered; not where all come from the
    cache. A logger that nobody has set up writes it to stderr. Entered by one thread at a time, as often as wanted.
    """

    def __init__(self) -> None:
        self._exits = ExitStack()
        self.has_spoken = False

    def __enter__(self) -> Self:
        if not self.has_spoken:
            self._exits.enter_context(announced_compilation(self._speak))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def _speak(self) -> None:
        if not self.has_spoken:
            self.has_spoken = True
            logger.warning(NOTICE)
