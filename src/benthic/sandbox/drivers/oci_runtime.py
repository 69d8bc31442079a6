"""The programs that start containers, what each of them needs, and how each is asked: crun, runc, gVisor's runsc.

gVisor puts a kernel of its own, an ordinary program of the host, between an agent and the host's kernel. It starts
and runs slower, and it cannot be held from outside at a number of processes without ending it.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benthic.sandbox.drivers.oci_launch import MOVED
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.linux import Cgroup, Launch
from benthic.sandbox.linux.cgroup_mounts import BASE
from benthic.sandbox.records import MIB, Limits

Runtime = Literal["crun", "runc", "gvisor"]
OOM_SCORE_ADJ = -900
"""Init's; it is inherited, since nobody may lower it inside. Commands raise theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OciRuntime:
    """One of them."""

    name: Runtime
    program: str
    """Also its Debian package."""
    options: tuple[str, ...] = ()
    """Before `run`."""
    run_options: tuple[str, ...] = ("--preserve-fds=1",)
    makes_groups: bool = False
    """It joins control groups by itself, of version 1 alone; the others stay in ours."""
    refuses_hybrid: bool = False
    """It refuses machines with both versions of control groups mounted where they are by custom."""
    has_own_kernel: bool = False
    """System calls of commands do not go to the host's kernel, and init has no descriptor of the host's."""
    spare_memory_bytes: int = 4 * MIB
    """Allowed on top of the sandbox's memory, for init and what the runtime leaves running."""
    spare_processes: int = 2
    processes_each: int = 1
    """Processes of the host for one of the sandbox."""

    def found(self) -> str:
        """The program's path.

        Raises:
            StartFailed: it is not installed.
        """
        found = shutil.which(self.program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
        if found is None:
            raise StartFailed(
                f"{self.program} is not installed; install the Debian package {self.program}", stage="runtime"
            )
        return found

    def version(self) -> str:
        """The first line that it says of itself."""
        done = subprocess.run([self.found(), "--version"], capture_output=True, text=True, check=False)
        return done.stdout.partition("\n")[0]

    def moved(self, group: Cgroup) -> Path | None:
        """The mount of the version 2 tree, if it must not be seen where it is (see `OciLaunch.moved`)."""
        hierarchy = group.hierarchy
        is_refused = self.refuses_hybrid and hierarchy.mode == "hybrid"
        return hierarchy.version2.parent if hierarchy.version2 and is_refused else None

    def group_limits(self, limits: Limits) -> Limits:
        """A sandbox's limits with room for init and what the runtime leaves running; memory is apart."""
        return replace(limits, num_processes=limits.num_processes * self.processes_each + self.spare_processes)

    def command(self, home: Path, group: Cgroup, pid_file: Path, log: Path) -> list[str]:
        """What starts the bundle of a home; it ends when init runs."""
        run = ["run", "--detach", *self.run_options, f"--bundle={home / 'bundle'}", f"--pid-file={pid_file}", home.name]
        command = [self.found(), f"--root={home / 'runtime'}", f"--log={log}", *self.options, *run]
        if self.makes_groups:
            return Launch(oom_score_adj=OOM_SCORE_ADJ).command(command)
        if self.moved(group) is not None:
            group = Cgroup(replace(group.hierarchy, version2=MOVED / BASE), group.name)
        return Launch(group=group, oom_score_adj=OOM_SCORE_ADJ).command(command)


RUNTIMES: dict[Runtime, OciRuntime] = {
    "crun": OciRuntime(name="crun", program="crun", options=("--cgroup-manager=disabled",), refuses_hybrid=True),
    "runc": OciRuntime(name="runc", program="runc", makes_groups=True),
    "gvisor": OciRuntime(
        name="gvisor",
        program="runsc",
        # ptrace works on every machine; systrap is not in all versions, and kvm hangs on some. Shared access: what a
        # command has written is on the host's disk, where snapshots look for it.
        options=(
            *("--platform=ptrace", "--network=none", "--ignore-cgroups"),
            *("--host-uds=create", "--file-access=shared"),
        ),
        run_options=(),
        has_own_kernel=True,
        spare_memory_bytes=64 * MIB,
        spare_processes=256,
        processes_each=64,  # a thread for each thread of gVisor's own, which gives up at the limit
    ),
}
"""In order of preference: crun is quicker and smaller."""
