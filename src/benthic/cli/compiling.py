"""A word to whoever waits while CPU kernels are compiled, which happens on a machine's first start only."""

from contextlib import AbstractContextManager

import typer

NOTICE = "compiling CPU kernels, once: up to half a minute ..."


def compilation_notice() -> AbstractContextManager[None]:
    """Prints NOTICE on stderr as soon as a kernel is compiled inside, and nothing where all come from the cache."""
    from benthic.kernels.compiling import announced_compilation

    return announced_compilation(lambda: typer.echo(NOTICE, err=True))
