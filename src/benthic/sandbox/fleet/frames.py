"""What travels over HTTP where JSON alone will not do: a line of JSON, then as many bytes as the line says.

    {"type": "chunk", "stream": "stdout", "num_bytes": 6}\\nhello\\n

A call is one `request` frame, its response one `answer` frame. A stream is any number of `chunk` frames, with a `ping`
whenever nothing else came for a while, and ends in an `answer` or an `end`; what ends earlier was cut.
"""

import json
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from benthic.errors import RequestError, shown
from benthic.sandbox.host import Answer, Logged, Request
from benthic.sandbox.records import Chunk
from benthic.sandbox.wire import decode

CONTENT_TYPE = "application/x-benthic-frames"
MAX_LINE_BYTES = 16 << 20
MAX_DATA_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: its type, the JSON beside it, and its bytes."""

    type: str
    fields: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""

    def to_bytes(self) -> bytes:
        """As it travels."""
        line = json.dumps({"type": self.type, **self.fields, "num_bytes": len(self.data)}, separators=(",", ":"))
        return line.encode() + b"\n" + self.data


PING = Frame("ping")
END = Frame("end")


class FrameReader:
    """Cuts a stream of bytes, in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: tuple[str, dict[str, Any], int] | None = None

    @property
    def is_between_frames(self) -> bool:
        """Whether everything fed so far was whole frames."""
        return not self._buffer and self._head is None

    def feed(self, piece: bytes) -> list[Frame]:
        """The frames that this piece completes.

        Raises:
            RequestError: a line or a length is no frame's.
        """
        self._buffer += piece
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        if self._head is None:
            end = self._buffer.find(b"\n")
            if end < 0 and len(self._buffer) <= MAX_LINE_BYTES:
                return None
            if end < 0:
                raise RequestError(f"a frame's line must end within {MAX_LINE_BYTES} bytes")
            self._head = _head_of(bytes(self._buffer[:end]))
            del self._buffer[: end + 1]
        kind, fields, num_bytes = self._head
        if len(self._buffer) < num_bytes:
            return None
        data = bytes(self._buffer[:num_bytes])
        del self._buffer[:num_bytes]
        self._head = None
        return Frame(kind, fields, data)


async def frames_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[Frame]:
    """The frames of a response's body; it may end in the middle of one."""
    reader = FrameReader()
    async for piece in pieces:
        for frame in reader.feed(piece):
            yield frame


def one_frame(body: bytes) -> Frame:
    """A body that is exactly one frame.

    Raises:
        RequestError: it is not.
    """
    reader = FrameReader()
    frames = reader.feed(body)
    if len(frames) != 1 or not reader.is_between_frames:
        raise RequestError(f"the body must be one frame, and is {len(frames)} of them and a rest")
    return frames[0]


def request_frame(request: Request) -> Frame:
    """A call as it travels to a host."""
    return Frame("request", {"verb": request.verb, "arguments": request.arguments}, request.data)


def request_of(frame: Frame) -> Request:
    """The call of a request's frame."""
    return replace(decode(Request, frame.fields), data=frame.data)


def answer_frame(answer: Answer) -> Frame:
    """An answer as it travels back."""
    fields = {"value": answer.value, "seq": answer.seq, "is_replayed": answer.is_replayed}
    return Frame("answer", fields | ({"error": answer.error} if answer.error else {}), answer.data)


def answer_of(frame: Frame) -> Answer:
    """The answer of an answer's frame."""
    fields = frame.fields
    return Answer(
        value=decode(dict[str, Any], fields.get("value", {}), "value"),
        data=frame.data,
        error=decode(str, fields["error"], "error") if "error" in fields else None,
        seq=decode(int, fields.get("seq", 0), "seq"),
        is_replayed=decode(bool, fields.get("is_replayed", False), "is_replayed"),
    )


def logged_frames(items: Iterable[Logged]) -> bytes:
    """A page of logged calls as it travels: an `answer` frame with the request's hash, and maybe its `exit`."""
    frames = []
    for item in items:
        frame = answer_frame(item.answer)
        frames.append(replace(frame, fields={**frame.fields, "hash": item.request_hash}))
        if item.exit is not None:
            frames.append(replace(answer_frame(item.exit), type="exit"))
    return b"".join(frame.to_bytes() for frame in frames)


def logged_of(body: bytes) -> list[Logged]:
    """The page of such a body.

    Raises:
        RequestError: it is none.
    """
    reader = FrameReader()
    found: list[Logged] = []
    for frame in reader.feed(body):
        if frame.type == "exit" and found:
            found[-1] = replace(found[-1], exit=answer_of(frame))
        else:
            request_hash = decode(str, frame.fields.get("hash"), "hash")
            found.append(Logged(request_hash=request_hash, answer=answer_of(frame)))
    if not reader.is_between_frames:
        raise RequestError("a page of logged calls was cut")
    return found


def item_frame(item: Chunk | Answer) -> Frame:
    """One item of a stream."""
    return Frame("chunk", {"stream": item.stream}, item.data) if isinstance(item, Chunk) else answer_frame(item)


def item_of(frame: Frame) -> Chunk | Answer:
    """The item of a stream's frame."""
    if frame.type == "chunk":
        stream = frame.fields.get("stream")
        return Chunk("stderr" if stream == "stderr" else "stdout", frame.data)
    return answer_of(frame)


def _head_of(line: bytes) -> tuple[str, dict[str, Any], int]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise RequestError(f"a frame must begin with a line of JSON, and begins with {shown(line[:50])}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise RequestError(f"a frame's line must be an object with a type, and is {shown(fields)}")
    num_bytes = fields.pop("num_bytes", 0)
    if not isinstance(num_bytes, int) or isinstance(num_bytes, bool) or not 0 <= num_bytes <= MAX_DATA_BYTES:
        raise RequestError(f"num_bytes ({shown(num_bytes)}) must be in 0..{MAX_DATA_BYTES}")
    return fields.pop("type"), fields, num_bytes
