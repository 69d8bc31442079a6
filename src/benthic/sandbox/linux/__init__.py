"""What the drivers ask of the Linux kernel: control groups, host uids, the filter of system calls, processes."""

from benthic.sandbox.linux.cgroup import Cgroup
from benthic.sandbox.linux.cgroup_mounts import Hierarchy, find_hierarchy
from benthic.sandbox.linux.launch import Launch, spawn_detached
from benthic.sandbox.linux.processes import ProcessId
from benthic.sandbox.linux.seccomp import DeniedCall, build_filter, denied_calls
from benthic.sandbox.linux.state import HomeState, group_name, root_tag
from benthic.sandbox.linux.uids import UidPool

__all__ = [
    "Cgroup",
    "DeniedCall",
    "Hierarchy",
    "HomeState",
    "Launch",
    "ProcessId",
    "UidPool",
    "build_filter",
    "denied_calls",
    "find_hierarchy",
    "group_name",
    "root_tag",
    "spawn_detached",
]
