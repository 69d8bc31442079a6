"""Frames on the stream to init: a JSON header and raw bytes, each whole or not at all. `frames.c` is the other end.

    magic "BNT1" | header length | body length | CRC of these 12 bytes | CRC of header and body | header | body

All numbers are 32 bits, little endian. The second CRC starts from the session's key, so that bytes of a file or of an
output are never taken for a frame after a disturbance; greetings alone have the key 0. Names of files need not be
UTF-8: bytes that are not travel as surrogates in Python's strings.
"""

import json
import re
import zlib
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

from benthic.sandbox.errors import CallRefused

MAGIC = b"BNT1"
PREFIX = Struct("<4sIIII")
HEADER_MAX, BODY_MAX = 1 << 20, 1 << 20
"""What init takes, in bytes."""
GUEST_HEADER_MAX, GUEST_BODY_MAX = 64 << 10, 256 << 10
"""What it may send, in bytes."""


NUL = re.compile(rb"(?<!\\)(\\\\)*\\u0000")
"""As JSON writes it: after an even number of backslashes, each pair of which is one backslash."""


class FrameError(ValueError):
    """Bytes that are no frame of this session."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    header: dict[str, Any]
    body: bytes = b""


def encode_frame(frame: Frame, key: int) -> bytes:
    """The bytes of a frame.

    Raises:
        CallRefused: the header or body is larger than init takes, or a string holds what no path, argument or variable
            may: a NUL, half a surrogate pair.
    """
    try:
        header = json.dumps(frame.header, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise CallRefused(
            f"a string holds half a surrogate pair, which no path, argument or variable may: {error}"
        ) from None
    if len(header) > HEADER_MAX or len(frame.body) > BODY_MAX:
        raise CallRefused(
            f"a call of {len(header)} bytes with {len(frame.body)} bytes of data is too large; "
            f"at most {HEADER_MAX} and {BODY_MAX} fit"
        )
    if NUL.search(header):
        raise CallRefused("a string holds a NUL character, which no path, argument or variable may")
    prefix = PREFIX.pack(MAGIC, len(header), len(frame.body), 0, 0)[:12]
    payload_crc = zlib.crc32(frame.body, zlib.crc32(header, key))
    return b"".join(
        (prefix, zlib.crc32(prefix).to_bytes(4, "little"), payload_crc.to_bytes(4, "little"), header, frame.body)
    )


def key_of(nonce: str) -> int:
    """The key of the session that a greeting with this nonce began."""
    return zlib.crc32(nonce.encode())


@dataclass(slots=True)
class FrameDecoder:
    """Takes what a stream gives, piece by piece; `take` returns the frames that are whole.

    Until the greeting has been seen, whatever is no frame is an older session's rest and skipped. After it, it is an
    error.
    """

    key: int = 0
    is_greeted: bool = False
    _seen: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        """Adds bytes of the stream."""
        self._seen += data

    def take(self) -> Frame | None:
        """The next frame, None if none is whole yet.

        Raises:
            FrameError: the bytes are no frame, or a larger one than a guest may send.
        """
        while True:
            if not self.is_greeted:
                self._skip_noise()
            if len(self._seen) < PREFIX.size:
                return None
            magic, header_len, body_len, prefix_crc, payload_crc = PREFIX.unpack_from(self._seen)
            is_sound = magic == MAGIC and prefix_crc == zlib.crc32(self._seen[:12])
            if not is_sound or header_len > GUEST_HEADER_MAX or body_len > GUEST_BODY_MAX:
                self._refuse(1, f"bytes that are no frame: {bytes(self._seen[:20])!r}")
                continue
            end = PREFIX.size + header_len + body_len
            if len(self._seen) < end:
                return None
            payload = bytes(self._seen[PREFIX.size : end])
            if payload_crc != zlib.crc32(payload, self.key if self.is_greeted else 0):
                self._refuse(end, "a frame of another session, or a damaged one")
                continue
            del self._seen[:end]
            return Frame(_parse(payload[:header_len]), payload[header_len:])

    def _refuse(self, size: int, why: str) -> None:
        if self.is_greeted:
            raise FrameError(why)
        del self._seen[:size]

    def _skip_noise(self) -> None:
        start = self._seen.find(MAGIC)
        del self._seen[: start if start >= 0 else max(0, len(self._seen) - len(MAGIC) + 1)]


def _parse(header: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(header.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame's header is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise FrameError(f"a frame's header is no object: {header[:60]!r}")
    return parsed
