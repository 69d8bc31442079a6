"""The command line: one file a verb."""

from benthic.cli.command import main

__all__ = ["main"]
