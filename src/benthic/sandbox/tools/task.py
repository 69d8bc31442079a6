"""A task for an agent: what it is told, what its sandbox is made from, and how its work is judged.

What judges must not be readable, writable or imitable by what is judged. So hidden files enter only for scoring, into
a fresh sandbox, and every check compares on the host: `OutputCheck` and `CallCheck` hold expected values that never
enter a sandbox, `ReportCheck` trusts a hidden program that signs its report with a secret of that run.
"""

from dataclasses import dataclass, field
from typing import Any

from benthic.errors import ConfigError
from benthic.sandbox.records import Command, SandboxSpec
from benthic.sandbox.tools.definitions import SCHEMAS

Files = tuple[tuple[str, bytes], ...]
"""Paths and what is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCheck:
    """The work is a program: it must print this and end well."""

    name: str
    command: Command
    stdout: bytes
    is_exact: bool = False
    """Compare every byte; else spaces at the ends of lines and of the whole do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCheck:
    """The work is a Python function: called in a process of its own, it must return these values (as JSON)."""

    name: str
    file: str
    """Where the function is, such as /work/solution.py."""
    function: str
    cases: tuple[tuple[tuple[Any, ...], Any], ...]
    """Arguments and what they must give."""
    timeout_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCheck:
    """A hidden program judges: for each name it must print `SECRET passed NAME`, with the line it reads on stdin first.

    It must not load the agent's code into its own process, where the secret could be found. What it starts runs as its
    own user, and must not see into it either: `python3 FILE` is closed to them here, other programs must call
    `prctl(PR_SET_DUMPABLE, 0)` first. It judges in a sandbox where no other check has run.
    """

    name: str
    command: Command
    passed: tuple[str, ...]
    """Every test that must be reported: one that is missing has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """A file must have this content."""

    name: str
    path: str
    content: bytes
    is_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCheck:
    """What was handed in must be this, but for spaces around it."""

    name: str
    answer: str


Check = OutputCheck | CallCheck | ReportCheck | FileCheck | AnswerCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. The same task with the same model gives the same episode."""

    id: str
    prompt: str
    checks: tuple[Check, ...]
    system: str | None = None
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    files: Files = ()
    """Put into the sandbox before `setup`."""
    setup: tuple[Command, ...] = ()
    """Run before the agent starts; each must end with 0."""
    hidden_files: Files = ()
    """Enter the fresh sandbox of scoring alone, over whatever the agent left at their paths."""
    protected: tuple[str, ...] = ()
    """Paths of `files` that an agent must leave alone: they are put back before scoring, and a change is a signal."""
    workspace: str = "/work"
    """The folder that is judged: it alone is carried from the agent's sandbox to that of scoring."""
    tools: tuple[str, ...] = tuple(SCHEMAS)
    max_steps: int = 32
    command_timeout_s: float = 60.0
    is_partial: bool = False
    """The reward is the share of checks that passed; else it is 1 if all did, and 0."""

    def __post_init__(self) -> None:
        if not self.checks:
            raise ConfigError(f"task {self.id!r} has no check; without one nothing can be judged")
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names):
            raise ConfigError(f"task {self.id!r} names two checks alike: {names}")
        known = {path for path, _ in self.files}
        lost = [path for path in self.protected if path not in known]
        if lost:
            raise ConfigError(f"task {self.id!r} protects {lost[0]!r}, which is none of its files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one check went."""

    name: str
    is_passed: bool
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What an episode is worth. `None` says nothing about the agent: leave it out, never count it as 0."""

    value: float | None
    reason: str
    verdicts: tuple[Verdict, ...] = ()
    signals: tuple[str, ...] = ()
    """What the agent did to its surroundings: system files or protected files changed."""
