"""News of CPU kernels being compiled, which happens on a machine's first start only and takes a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def announced_compilation(say: Callable[[], object]) -> Iterator[None]:
    """Calls `say` as soon as a kernel is compiled inside, and not at all where all come from the cache."""
    from numba.core import event

    class Notice(event.Listener):  # type: ignore[misc]
        """Speaks once."""

        said = False

        def on_start(self, event: object) -> None:
            if not self.said:
                self.said = True
                say()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Notice()):
        yield
