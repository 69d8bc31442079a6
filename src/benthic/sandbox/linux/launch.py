"""The command line that puts a program into its control group and under its host uid before it begins.

A shell of three lines joins the group, `setpriv` drops the uid, and both become the program by exec: no process of
ours is in between, and Python forks nothing itself (with a large parent that would be slow, with threads unsafe).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benthic.sandbox.linux.cgroup import Cgroup

_JOIN = """\
score=$1; num=$2; shift 2
[ "$score" = 0 ] || echo "$score" >/proc/self/oom_score_adj || exit 126
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
    """-1000 to 1000: who goes last and first when memory runs out."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """What to start instead of `argv`; open descriptors, environment and folder pass through."""
        files = [] if self.group is None else [str(file) for file in self.group.join_files()]
        become = [] if self.uid is None else _setpriv(self.uid)
        return ["/bin/sh", "-c", _JOIN, "sh", str(self.oom_score_adj), str(len(files)), *files, *become, *argv]


def _setpriv(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
