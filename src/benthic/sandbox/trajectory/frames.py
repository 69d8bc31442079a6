"""How a trajectory lies on disk: frames, one after another, each with its own proof and that of all before it.

    magic 4 | text_len 4 | data_len 4 | synced 8 | chain 16 | payload crc 4 | head crc 4 | text (JSON) | data (bytes)

`chain` is a digest of this frame and of the chain before it: a frame that was changed, moved, copied or taken out
breaks it even where every CRC is right. `synced` is how far the file was known to be on disk when the frame was
written; it tells what a crash may do from what it may not.

The law of the tail. Zeros up to the end are room for frames to come. A crash can cut the file anywhere past what was
synced, and leave holes of zeros there. So bytes that are no frame are a torn tail, to be dropped, if (1) no intact
frame behind them knows them to be synced, and (2) the frame that they began ends early or has a hole. Everything else
was damaged later, and nothing is guessed: `TrajectoryCorrupt`.
"""

import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from benthic.sandbox.errors import TrajectoryCorrupt

MAGIC = b"BTL1"
_HEAD = struct.Struct("<4sIIQ16sI")
_CRC = struct.Struct("<I")
HEAD_LEN = _HEAD.size + _CRC.size
CHAIN_START = bytes(16)
MAX_TEXT_BYTES = 1 << 25
MAX_DATA_BYTES = 1 << 25
SECTOR_BYTES = 512
"""What a disk writes wholly or not at all."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Where an intact frame lies, and what it says. `text` and `data` are read again when they are asked for."""

    start: int
    text_len: int
    data_len: int
    synced: int
    """Bytes of the file that were on disk when this frame was written."""
    chain: bytes
    """Digest of this and all earlier frames."""

    @property
    def end(self) -> int:
        """Where the next one starts."""
        return self.start + HEAD_LEN + self.text_len + self.data_len


@dataclass(frozen=True, slots=True)
class Payload:
    """What a frame carries."""

    text: bytes
    data: bytes


@dataclass(frozen=True, slots=True)
class Scan:
    """The intact frames of a file, and how many bytes of torn tail follow them, without the room behind it."""

    frames: list[Frame]
    payloads: list[bytes]
    """The text of each frame."""
    torn_bytes: int

    @property
    def end(self) -> int:
        """Where the intact part ends."""
        return self.frames[-1].end if self.frames else 0


def encode(text: bytes, data: bytes, *, start: int, synced: int, chain: bytes) -> tuple[bytes, Frame]:
    """A frame's bytes, and where it will lie.

    Args:
        start: offset in the file.
        synced: bytes of the file that are known to be on disk.
        chain: of the frame before, CHAIN_START for the first.
    """
    assert len(text) <= MAX_TEXT_BYTES and len(data) <= MAX_DATA_BYTES, (len(text), len(data))
    assert synced <= start, (synced, start)
    chain = next_chain(chain, text, data)
    crc = zlib.crc32(data, zlib.crc32(text))
    head = _HEAD.pack(MAGIC, len(text), len(data), synced, chain, crc)
    whole = b"".join((head, _CRC.pack(zlib.crc32(head)), text, data))
    return whole, Frame(start, len(text), len(data), synced, chain)


def next_chain(chain: bytes, text: bytes, data: bytes) -> bytes:
    """The digest that a frame of this payload has behind one of that digest."""
    digest = hashlib.blake2b(chain, digest_size=16)
    digest.update(len(text).to_bytes(8, "little"))
    digest.update(text)
    digest.update(data)
    return digest.digest()


def read(file: int, frame: Frame, path: Path) -> Payload:
    """A frame's payload, proved again.

    Raises:
        TrajectoryCorrupt: the bytes have changed since the file was opened.
    """
    whole = _read_at(file, frame.start, frame.end - frame.start)
    found = _parse(whole, frame.start)
    if found is None or found[0] != frame:
        raise TrajectoryCorrupt(f"{path}: the frame at byte {frame.start} has changed since it was read; restore it")
    return found[1]


def scan(file: int, path: Path) -> Scan:
    """Reads a file from its start.

    Raises:
        TrajectoryCorrupt: bytes that no crash explains.
    """
    size, start, chain = os.fstat(file).st_size, 0, CHAIN_START
    frames: list[Frame] = []
    texts: list[bytes] = []
    while start < size:
        found = _frame_at(file, start, size)
        if found is None:
            torn = _torn_tail(file, start, size, path)
            return Scan(frames, texts, torn)
        frame, payload = found
        chain = next_chain(chain, payload.text, payload.data)
        if frame.chain != chain:
            raise TrajectoryCorrupt(
                f"{path}: record {len(frames)} at byte {start} does not follow the one before it: "
                "records were changed, moved or removed; restore the file"
            )
        frames.append(frame)
        texts.append(payload.text)
        start = frame.end
    return Scan(frames, texts, 0)


def _frame_at(file: int, start: int, size: int) -> tuple[Frame, Payload] | None:
    head = _read_at(file, start, HEAD_LEN)
    lengths = _lengths(head)
    if lengths is None or start + HEAD_LEN + sum(lengths) > size:
        return None
    return _parse(head + _read_at(file, start + HEAD_LEN, sum(lengths)), start)


def _lengths(head: bytes) -> tuple[int, int] | None:
    """Of a head that its CRC proves."""
    if len(head) < HEAD_LEN or _CRC.unpack_from(head, _HEAD.size)[0] != zlib.crc32(head[: _HEAD.size]):
        return None
    magic, text_len, data_len, *_ = _HEAD.unpack_from(head)
    is_bounded = text_len <= MAX_TEXT_BYTES and data_len <= MAX_DATA_BYTES
    return (text_len, data_len) if magic == MAGIC and is_bounded else None


def _parse(whole: bytes, start: int) -> tuple[Frame, Payload] | None:
    lengths = _lengths(whole[:HEAD_LEN])
    if lengths is None or len(whole) < HEAD_LEN + sum(lengths):
        return None
    _, text_len, data_len, synced, chain, crc = _HEAD.unpack_from(whole)
    text = whole[HEAD_LEN : HEAD_LEN + text_len]
    data = whole[HEAD_LEN + text_len : HEAD_LEN + text_len + data_len]
    if zlib.crc32(data, zlib.crc32(text)) != crc:
        return None
    return Frame(start, text_len, data_len, synced, chain), Payload(text, data)


def _torn_tail(file: int, start: int, size: int, path: Path) -> int:
    """Bytes from `start` on, which is no intact frame, if a crash can have left them so."""
    rest = _read_at(file, start, size - start)
    num_used = len(rest.rstrip(b"\0"))
    if not num_used:
        return 0
    synced = _synced_behind(rest, start)
    if synced > start:
        raise TrajectoryCorrupt(
            f"{path}: the bytes from {start} on are no record, though they were safely on disk up to {synced}: "
            "they were damaged later; restore the file"
        )
    lengths = _lengths(rest[:HEAD_LEN])
    begun = max(num_used, HEAD_LEN) if lengths is None else HEAD_LEN + sum(lengths)
    if not (_ends_early(rest) or _has_hole(rest[:begun], start)):
        raise TrajectoryCorrupt(
            f"{path}: the last record, at byte {start}, is whole but its checksum is wrong, which no crash leaves; "
            "restore the file"
        )
    return min(max(begun, num_used), len(rest))


def _synced_behind(rest: bytes, start: int) -> int:
    """The most that any intact frame inside `rest` knows to be on disk."""
    synced, place = 0, rest.find(MAGIC, 1)
    while place != -1:
        found = _parse(rest[place:], start + place)
        if found is not None:
            synced = max(synced, found[0].synced)
        place = rest.find(MAGIC, place + 1 if found is None else found[0].end - start)
    return synced


def _ends_early(rest: bytes) -> bool:
    """Whether the file stops within a frame that began well."""
    if len(rest) < HEAD_LEN:
        return rest.startswith(MAGIC[: len(rest)])
    lengths = _lengths(rest[:HEAD_LEN])
    return lengths is not None and len(rest) < HEAD_LEN + sum(lengths)


def _has_hole(rest: bytes, start: int) -> bool:
    """Whether all that lies in one of the disk's sectors is zero: it was never written."""
    first = SECTOR_BYTES - start % SECTOR_BYTES
    edges = [0, *range(first, len(rest), SECTOR_BYTES), len(rest)]
    return any(not any(rest[a:b]) for a, b in zip(edges, edges[1:], strict=False) if b > a)


def _read_at(file: int, start: int, length: int) -> bytes:
    parts = []
    while length > 0:
        part = os.pread(file, length, start)
        if not part:
            break
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return b"".join(parts)
