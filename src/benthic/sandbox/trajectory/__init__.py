"""The trajectory log: every call of a sandbox on disk, so that after any crash none is lost and none runs twice."""

from benthic.sandbox.trajectory.blame import Change, blame
from benthic.sandbox.trajectory.blobs import BlobStore
from benthic.sandbox.trajectory.entries import Entry, Head, request_hash
from benthic.sandbox.trajectory.log import TrajectoryLog
from benthic.sandbox.trajectory.reader import Trajectory
from benthic.sandbox.trajectory.replay import Report, Step, verify

__all__ = [
    "BlobStore",
    "Change",
    "Entry",
    "Head",
    "Report",
    "Step",
    "Trajectory",
    "TrajectoryLog",
    "blame",
    "request_hash",
    "verify",
]
