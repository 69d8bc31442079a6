"""A word to whoever waits while CPU kernels are compiled, which happens on a machine's first start only."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

NOTICE = "compiling CPU kernels, once: up to half a minute ..."


@contextmanager
def compilation_notice() -> Iterator[None]:
    """Prints NOTICE on stderr as soon as a kernel is compiled inside, and nothing where all come from the cache."""
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]
        """Speaks once."""

        said = False

        def on_start(self, event: object) -> None:
            if not self.said:
                self.said = True
                typer.echo(NOTICE, err=True)

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Notice()):
        yield
