"""A trajectory as it lies in a log: its calls by their places, read from disk when asked for.

Anybody may read a log while its owner writes it; only the owner drops a torn tail.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benthic.sandbox.errors import TrajectoryCorrupt
from benthic.sandbox.host import Answer, Logged, Request
from benthic.sandbox.records import Checkpoint
from benthic.sandbox.trajectory import frames
from benthic.sandbox.trajectory.blobs import BlobStore
from benthic.sandbox.trajectory.entries import FORMAT, Entry, Head
from benthic.sandbox.trajectory.frames import Frame, Payload

PAGE_BYTES = 1 << 20
PAGE_CALLS = 512
"""Of a page: little enough to be read at once while others wait."""
_LOOKS, _LOOK_AGAIN_S = 3, 0.002


@dataclass(slots=True)
class Place:
    """One line of the index: where the records of a call lie."""

    seq: int
    verb: str
    request_hash: str
    begin: Frame
    """Of its `begin` or `done` record."""
    end: Frame | None = None
    exit: Frame | None = None


class Trajectory:
    """The calls of one log."""

    def __init__(self, path: Path, blobs: BlobStore) -> None:
        self.path = path
        self.blobs = blobs
        self.torn_bytes = 0
        """What a crash left at the end and nobody had been told of."""
        self._places: list[Place] = []
        self._frames: list[Frame] = []
        self._notes: list[dict[str, Any]] = []
        self._head: Head | None = None

    @classmethod
    def read(cls, path: Path, blobs: BlobStore) -> "Trajectory":
        """A log as it is now, which others may be writing.

        Raises:
            FileNotFoundError: there is none.
            TrajectoryCorrupt: its bytes are not what was written.
        """
        log = cls(path, blobs)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            log._index_all(_scanned(descriptor, path))
        finally:
            os.close(descriptor)
        return log

    @property
    def head(self) -> Head:
        """Whose log this is."""
        assert self._head is not None
        return self._head

    @property
    def next_seq(self) -> int:
        """One past the last call."""
        return len(self._places)

    def place(self, seq: int) -> Place | None:
        """The index line of a call; None past the end."""
        assert seq >= 0, seq
        return self._places[seq] if seq < len(self._places) else None

    def places(self) -> Sequence[Place]:
        """The index, in order."""
        return self._places

    def entry(self, seq: int) -> Entry:
        """A call in full. The seq must be in the log.

        Raises:
            TrajectoryCorrupt: the disk has changed it.
        """
        place = self._places[seq]
        text, data = self._record(place.begin)
        ended = (text, data) if text["type"] == "done" else self._record(place.end) if place.end else None
        exited = self._record(place.exit) if place.exit else None
        return Entry(
            seq=seq,
            request=Request(
                verb=text["verb"], arguments=text["arguments"], data=b"" if text["type"] == "done" else data
            ),
            request_hash=text["hash"],
            began_s=text["at"],
            answer=_answer(seq, *ended) if ended else None,
            ended_s=ended[0].get("ended", ended[0]["at"]) if ended else None,
            exit=_answer(seq, *exited) if exited else None,
        )

    def answer(self, seq: int) -> Answer | None:
        """What a call came to; None if the log has no end for it. The seq must be in the log.

        Raises:
            TrajectoryCorrupt: the disk has changed it.
        """
        end = self._places[seq].end
        return _answer(seq, *self._record(end)) if end else None

    def page(self, first_seq: int) -> list[Logged]:
        """Calls from a place on that have ended, a bounded number and size of them; those with blobs are left out.

        Raises:
            TrajectoryCorrupt: the disk has changed one.
        """
        assert first_seq >= 0, first_seq
        found: list[Logged] = []
        rest = PAGE_BYTES
        for place in self._places[first_seq : first_seq + PAGE_CALLS]:
            if place.end is None:
                continue
            rest -= sum(frame.text_len + frame.data_len for frame in (place.end, place.exit) if frame is not None)
            if rest < 0:
                break
            answer, exited = self._inline_answer(place, place.end), self._inline_answer(place, place.exit)
            if answer is not None:
                found.append(Logged(request_hash=place.request_hash, answer=answer, exit=exited))
        return found

    def entries(self) -> Iterator[Entry]:
        """All calls, in order."""
        return (self.entry(place.seq) for place in self._places)

    def records(self) -> list[dict[str, Any]]:
        """Every record as JSON with the length of its bytes, oldest first."""
        with open(self.path, "rb") as file:
            return [
                {**json.loads(frames.read(file.fileno(), frame, self.path).text), "num_bytes": frame.data_len}
                for frame in self._frames
            ]

    def notes(self, what: str) -> list[dict[str, Any]]:
        """What else happened, of one sort, oldest first; `next_seq` says before which call."""
        return [note for note in self._notes if note["what"] == what]

    def blob_digests(self) -> set[str]:
        """Of all blobs that this log needs."""
        return {record["blob"] for record in self.records() if "blob" in record}

    def checkpoint(self, last_seq: int | None = None) -> Checkpoint:
        """The place behind an answered call; None means behind the last of the answered ones without a gap."""
        if last_seq is None:
            last_seq = -1
            while last_seq + 1 < self.next_seq and self._end_of(last_seq + 1):
                last_seq += 1
        end = self._end_of(last_seq) if last_seq >= 0 else None
        assert end is not None or last_seq == -1, last_seq
        return Checkpoint(self.head.sandbox_id, last_seq, end.chain.hex() if end else "")

    def has(self, checkpoint: Checkpoint) -> bool:
        """Whether this log still says what it said at that place."""
        if checkpoint.last_seq >= self.next_seq or checkpoint.sandbox_id != self.head.sandbox_id:
            return False
        end = self._end_of(checkpoint.last_seq) if checkpoint.last_seq >= 0 else None
        return not checkpoint.chain or (end is not None and end.chain.hex() == checkpoint.chain)

    def _end_of(self, seq: int) -> Frame | None:
        place = self._places[seq]
        return place.end

    def _index_all(self, found: frames.Scan) -> None:
        self.torn_bytes = found.torn_bytes
        for frame, text in zip(found.frames, found.payloads, strict=True):
            self._index(frame, json.loads(text))
        if self._head is None:
            raise TrajectoryCorrupt(f"{self.path} has no head: it was cut off while it was made; remove it")

    def _index(self, frame: Frame, text: dict[str, Any]) -> None:
        """Adds a record, and holds it to the law: calls begin in order and end once, after they began."""
        is_first, seq = self._head is None, text.get("seq", -1)
        match text["type"]:
            case "head" if is_first and text["format"] == FORMAT:
                self._head = _head(text)
            case "begin" | "done" if not is_first and seq == self.next_seq:
                end = frame if text["type"] == "done" else None
                self._places.append(Place(seq, text["verb"], text["hash"], frame, end))
            case "end" if not is_first and 0 <= seq < self.next_seq and self._places[seq].end is None:
                self._places[seq].end = frame
            case "exit" if not is_first and 0 <= seq < self.next_seq and self._places[seq].exit is None:
                self._places[seq].exit = frame
            case "note" if not is_first:
                self._notes.append({**text, "next_seq": self.next_seq})
            case _:
                raise TrajectoryCorrupt(
                    f"{self.path}: a record {text['type']} of place {seq} cannot stand at byte {frame.start}, "
                    f"where place {self.next_seq} is next (format {FORMAT}); read it with the version that wrote it"
                )
        self._frames.append(frame)

    def _inline_answer(self, place: Place, frame: Frame | None) -> Answer | None:
        if frame is None:
            return None
        payload = self._payload(frame)
        text = json.loads(payload.text)
        return None if "blob" in text else _answer(place.seq, text, payload.data)

    def _record(self, frame: Frame) -> tuple[dict[str, Any], bytes]:
        payload = self._payload(frame)
        text = json.loads(payload.text)
        return text, self.blobs.get(text["blob"]) if "blob" in text else payload.data

    def _payload(self, frame: Frame) -> Payload:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return frames.read(descriptor, frame, self.path)
        finally:
            os.close(descriptor)


def _scanned(descriptor: int, path: Path) -> frames.Scan:
    """A frame may just be being written: then it is whole a moment later."""
    for _ in range(_LOOKS - 1):
        try:
            return frames.scan(descriptor, path)
        except TrajectoryCorrupt:
            time.sleep(_LOOK_AGAIN_S)
    return frames.scan(descriptor, path)


def _answer(seq: int, text: dict[str, Any], data: bytes) -> Answer:
    return Answer(value=text["value"], data=data, error=text.get("error"), seq=seq, is_replayed=True)


def _head(text: dict[str, Any]) -> Head:
    parent = text["parent"]
    return Head(
        sandbox_id=text["sandbox_id"],
        spec=text["spec"],
        created_s=text["at"],
        parent=Checkpoint(*parent) if parent else None,
        snapshot=text["snapshot"],
    )
