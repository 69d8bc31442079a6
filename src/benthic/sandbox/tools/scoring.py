"""An episode's end: the work is carried into a fresh sandbox and judged there.

The agent's sandbox may hold daemons, changed programs, a replaced interpreter. None of it comes along: only the
workspace does, as the files of an ordinary user. What fails for the machine's sake has no reward, with a reason; work
that cannot even be carried over is worth nothing, or making it so would be a way out of a bad episode.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from benthic.errors import SandboxError
from benthic.sandbox.errors import PathError, SandboxDied
from benthic.sandbox.host import Host
from benthic.sandbox.records import Reason
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.tools.checks import run_check
from benthic.sandbox.tools.integrity import Fingerprint, changes, fingerprint
from benthic.sandbox.tools.task import AnswerCheck, Check, ReportCheck, Reward, Task, Verdict

_AGENTS_DOING = (Reason.OUT_OF_MEMORY, Reason.OUT_OF_PROCESSES)


async def prepare(task: Task, sandbox: Sandbox) -> None:
    """Puts a task's files into a new sandbox and runs its setup.

    Raises:
        SandboxError: a command of the setup failed; nothing is the agent's doing yet.
    """
    for path, data in task.files:
        await sandbox.write(path, data)
    for command in task.setup:
        result = await sandbox.exec(command)
        if result.returncode != 0:
            error = SandboxError(
                f"setup of task {task.id!r} ended with {result.returncode}: {command.shell or command.argv!r}: "
                f"{result.stderr[-500:].decode('utf-8', 'replace')}"
            )
            error.is_infra = True
            raise error


async def score(
    task: Task, sandbox: Sandbox, *, submission: str | None, before: Fingerprint | None, host: Host | None = None
) -> Reward:
    """Judges the work in a sandbox, which is left as it is.

    Args:
        submission: what the agent handed in.
        before: the system's fingerprint when the agent started; None skips the comparison.
        host: where the fresh sandbox is made; None takes the default.
    """
    try:
        signals = await _signals(task, sandbox, before)
        verdicts = await _judge(task, sandbox, submission, host)
    except SandboxDied as error:
        return death_reward(error)
    except SandboxError as error:
        return Reward(value=None if error.is_infra else 0.0, reason=f"not judged: {error}")
    share = sum(verdict.is_passed for verdict in verdicts) / len(verdicts)
    if any(signal.startswith("protected") for signal in signals):
        return Reward(value=0.0, reason="protected files were changed", verdicts=verdicts, signals=signals)
    value = share if task.is_partial else float(share == 1)
    return Reward(value=value, reason="judged", verdicts=verdicts, signals=signals)


def death_reward(error: SandboxDied) -> Reward:
    """A sandbox's death as a reward: 0 where the agent killed it, none where the machine did."""
    if error.reason in _AGENTS_DOING:
        return Reward(
            value=0.0, reason=f"the agent's sandbox ended: {error.reason}", signals=(f"died: {error.reason}",)
        )
    return Reward(value=None, reason=f"the sandbox was lost: {error}")


async def _signals(task: Task, sandbox: Sandbox, before: Fingerprint | None) -> tuple[str, ...]:
    found = []
    if before is not None:
        found += [f"system file changed: {path}" for path in changes(before, await fingerprint(sandbox))[:20]]
    originals = dict(task.files)
    for path in task.protected:
        try:
            data = await sandbox.read(path, limit=len(originals[path]) + 1)
        except PathError:
            data = None
        if data != originals[path]:
            found.append(f"protected file changed: {path}")
    return tuple(found)


async def _judge(task: Task, sandbox: Sandbox, submission: str | None, host: Host | None) -> tuple[Verdict, ...]:
    if all(isinstance(check, AnswerCheck) for check in task.checks):
        return tuple([await run_check(check, sandbox, submission) for check in task.checks])
    work = await sandbox.download(task.workspace)
    verdicts = {}
    for checks in _rooms(task.checks):
        for verdict in await _judge_apart(task, checks, work, submission, host):
            verdicts[verdict.name] = verdict
    return tuple(verdicts[check.name] for check in task.checks)


def _rooms(checks: Sequence[Check]) -> list[list[Check]]:
    """Checks that may share a sandbox. A hidden program gets one where no work has run before it, which could have
    left a process, or another program in its place."""
    together: list[Check] = [check for check in checks if not isinstance(check, ReportCheck)]
    rooms: list[list[Check]] = [[check] for check in checks if isinstance(check, ReportCheck)]
    return [together, *rooms] if together else rooms


async def _judge_apart(
    task: Task, checks: Sequence[Check], work: bytes, submission: str | None, host: Host | None
) -> list[Verdict]:
    async with Sandbox.create_from(task.spec, host=host) as fresh:
        await prepare(task, fresh)
        for entry in await fresh.list(task.workspace):
            await fresh.remove(entry.path, recursive=True)
        await fresh.upload(work, str(PurePosixPath(task.workspace).parent))
        originals = dict(task.files)
        for path, data in (*((path, originals[path]) for path in task.protected), *task.hidden_files):
            await _put(fresh, path, data)
        return [await run_check(check, fresh, submission) for check in checks]


async def _put(sandbox: Sandbox, path: str, data: bytes) -> None:
    """A file of the task's, whatever the agent left in its place: a folder, a link elsewhere."""
    with suppress(PathError):
        await sandbox.remove(path, recursive=True)
    await sandbox.write(path, data)
