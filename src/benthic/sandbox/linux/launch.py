"""The command line that puts a program into its control group and under its host uid before it begins.

A shell of three lines joins the group, `setpriv` drops the uid, and both become the program by exec: no process of
ours is in between, and Python forks nothing itself (with a large parent that would be slow, with threads unsafe).
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benthic.sandbox.linux.cgroup import Cgroup

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_JOIN = """\
score=$1; num=$2; shift 2
[ "$score" = 0 ] || { echo "$score" >/proc/self/oom_score_adj; } 2>/dev/null
while [ "$num" -gt 0 ]; do echo 0 >"$1" || exit 126; shift; num=$((num - 1)); done
exec "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Who a program will be."""

    group: Cgroup | None = None
    uid: int | None = None
    """Host uid and gid, with no other groups; None keeps ours."""
    oom_score_adj: int = 0
    """-1000 to 1000: who goes last and first when memory runs out; less than ours only if we may."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to start instead of `argv`; open descriptors, environment and folder pass through."""
        files = [] if self.group is None else [str(file) for file in self.group.join_files()]
        become = [] if self.uid is None else _setpriv(self.uid)
        return ["/bin/sh", "-c", _JOIN, "sh", str(self.oom_score_adj), str(len(files)), *files, *become, *argv]


def _setpriv(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


def spawn_detached(argv: Sequence[str], descriptors: Mapping[int, int]) -> None:
    """Starts a program that is nobody's child: it outlives us, and whoever adopts orphans reaps it.

    It gets an environment of PATH alone and no descriptor but these; it keeps them for its life, so none may be a
    pipe that somebody reads to its end.

    Args:
        descriptors: number there -> number here; 0, 1 and 2 are /dev/null unless given.
    """
    with ExitStack() as opened:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        opened.callback(os.close, null)
        actions = []
        for there, here in ({0: null, 1: null, 2: null} | dict(descriptors)).items():
            # Copied far up first, so that no number is overwritten before it is copied.
            copy = fcntl.fcntl(here, fcntl.F_DUPFD_CLOEXEC, 100)
            opened.callback(os.close, copy)
            actions.append((os.POSIX_SPAWN_DUP2, copy, there))
        pid = os.posix_spawn("/usr/bin/setsid", ["setsid", "--fork", *argv], {"PATH": _PATH}, file_actions=actions)
        os.waitpid(pid, 0)
