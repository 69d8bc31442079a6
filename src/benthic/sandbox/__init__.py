"""Sandboxes for agents: four substrates behind one interface, and a log that survives everything. No torch."""

from benthic.sandbox.errors import (
    CommandTimeout,
    NotSupported,
    OutcomeUnknown,
    OutputLimit,
    PathError,
    SandboxDied,
    StartFailed,
    TrajectoryCorrupt,
    TrajectoryDiverged,
)
from benthic.sandbox.local import LocalHost
from benthic.sandbox.process import Process
from benthic.sandbox.records import (
    CallResult,
    Checkpoint,
    Chunk,
    Command,
    FileStat,
    Limits,
    Network,
    Reason,
    Result,
    SandboxSpec,
    SnapshotRef,
    State,
)
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.session import Session

__all__ = [
    "CallResult",
    "Checkpoint",
    "Chunk",
    "Command",
    "CommandTimeout",
    "FileStat",
    "Limits",
    "LocalHost",
    "Network",
    "NotSupported",
    "OutcomeUnknown",
    "OutputLimit",
    "PathError",
    "Process",
    "Reason",
    "Result",
    "Sandbox",
    "SandboxDied",
    "SandboxSpec",
    "Session",
    "SnapshotRef",
    "StartFailed",
    "State",
    "TrajectoryCorrupt",
    "TrajectoryDiverged",
]
