"""Small trajectories for the tests of this folder."""

from pathlib import Path

from benthic.sandbox.host import Answer, Request
from benthic.sandbox.trajectory import BlobStore, Head, TrajectoryLog


def command(number: int) -> Request:
    return Request(verb="exec", arguments={"shell": f"echo {number}", "timeout_s": 60.0})


def printed(number: int) -> Answer:
    return Answer(value={"returncode": 0, "num_stdout_bytes": len(str(number)) + 1}, data=f"{number}\n".encode())


async def new_log(folder: Path, name: str = "0123456789ab") -> TrajectoryLog:
    return await TrajectoryLog.create(folder / f"{name}.log", blobs(folder), Head(sandbox_id=name, spec={"kind": "vm"}))


async def opened(folder: Path, name: str = "0123456789ab") -> TrajectoryLog:
    return await TrajectoryLog.open(folder / f"{name}.log", blobs(folder))


def blobs(folder: Path) -> BlobStore:
    return BlobStore(folder / "blobs")


async def run_commands(log: TrajectoryLog, count: int) -> None:
    for _ in range(count):
        seq = log.next_seq
        await log.begin(seq, command(seq))
        await log.end(seq, printed(seq))
