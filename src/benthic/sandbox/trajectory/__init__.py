"""The trajectory log: every call of a sandbox on disk, so that after any crash none is lost and none runs twice."""

from benthic.sandbox.trajectory.blobs import BlobStore
from benthic.sandbox.trajectory.entries import Entry, Head, request_hash
from benthic.sandbox.trajectory.log import TrajectoryLog
from benthic.sandbox.trajectory.reader import Trajectory

__all__ = ["BlobStore", "Entry", "Head", "Trajectory", "TrajectoryLog", "request_hash"]
