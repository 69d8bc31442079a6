"""How sandboxes fail. A trainer leaves out of its loss what is not the agent's doing: see `SandboxError.is_infra`.

SandboxError              (benthic/errors.py)
|-- SandboxDied           it is gone; `reason` says why (out_of_memory is the agent's doing, host_lost is not)
|-- CommandTimeout        the command was ended; `result` has what it printed; the sandbox goes on
|-- OutputLimit           asked for with `strict_output`; `result` has the first and last part
|-- HostUnreachable       nobody answers for a sandbox that may well live; asking again later is safe
|-- QuotaExceeded         a project has all that it may have; it must close something first
|-- TokenRefused          a gateway or an agent does not know who asks
|-- UnknownSandbox        there is none of that name, as far as the caller may know
|-- StartFailed           `stage` and seconds of each stage are in the message
|-- CallRefused           init has no room for another job, or the call made no sense to it
|-- GuestLost             init inside cannot be reached; whoever owns the sandbox makes SandboxDied of it
|-- ImageError            an image, a layer or an archive that is not there, broken, or may not be taken in
|-- NotSupported          this kind, or this machine, cannot do that
|-- PathError             a file that is not there, is no file, is too large, or may not be touched
|-- TrajectoryDiverged    a replayed call differs from the logged one
|-- OutcomeUnknown        a crash hides whether a command ran, and its policy is to raise
|-- TrajectoryCorrupt     the log's bytes are not what was written
|-- TrajectoryHeld        another process writes this log
`-- TrajectoryUnwritable  the log's disk is full or failed: the call was not run, or is not known to have ended
"""

from benthic.errors import SandboxError
from benthic.sandbox.records import Reason, Result


class SandboxDied(SandboxError):
    """The sandbox is gone. It is never restarted silently."""

    def __init__(self, sandbox_id: str, reason: Reason, detail: str = "") -> None:
        super().__init__(f"sandbox {sandbox_id} is gone ({reason}){': ' if detail else ''}{detail}; create another one")
        self.sandbox_id, self.reason, self.detail = sandbox_id, reason, detail
        self.is_infra = reason in (Reason.HOST_LOST, Reason.CRASHED, Reason.EXPIRED)


class CommandTimeout(SandboxError):
    """A command ran or was silent for too long and was ended with everything it started."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class OutputLimit(SandboxError):
    """A command printed more than was kept, and the caller asked for all."""

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message)
        self.result = result


class HostUnreachable(SandboxError):
    """The gateway or the host did not answer for as long as the caller was ready to wait."""

    is_infra = True


class QuotaExceeded(SandboxError):
    """A project asks for more than it may have at once."""

    is_infra = True


class TokenRefused(SandboxError):
    """A token is missing, or opens nothing here."""


class UnknownSandbox(SandboxError):
    """There is no sandbox of that name, as far as the caller may know."""


class StartFailed(SandboxError):
    """A sandbox did not come up."""

    is_infra = True

    def __init__(self, message: str, *, stage: str = "") -> None:
        super().__init__(message)
        self.stage = stage


class ImageError(SandboxError):
    """An image, a layer or an archive is not there, is broken, or holds what no sandbox may be given."""


class NotSupported(SandboxError):
    """A kind of sandbox, or this machine, cannot do what was asked."""


class PathError(SandboxError):
    """A path inside the sandbox cannot be used as asked."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path!r}: {what}")
        self.path = path


class TrajectoryDiverged(SandboxError):
    """The caller's program is not the one that the log was written by."""


class OutcomeUnknown(SandboxError):
    """A command began, and nothing says whether it ended."""

    is_infra = True


class TrajectoryCorrupt(SandboxError):
    """A trajectory log was changed or damaged where no crash could have done it."""

    is_infra = True


class TrajectoryHeld(SandboxError):
    """A trajectory has one writer, and it is another one."""

    is_infra = True


class TrajectoryUnwritable(SandboxError):
    """A record could not be made safe. The same call may be sent again: it runs once at most."""

    is_infra = True


class CallRefused(SandboxError):
    """A call that init cannot take: too large, a string that no program may be given, too many jobs, too much kept."""


class GuestLost(SandboxError):
    """Init inside a sandbox cannot be reached, or makes no sense any more; the driver may know why."""

    is_infra = True
