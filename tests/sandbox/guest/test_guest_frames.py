"""Frames: whole or not at all, whatever the stream carries between them."""

import json
import os
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.sandbox.errors import CallRefused
from benthic.sandbox.guest.frames import (
    BODY_MAX,
    GUEST_BODY_MAX,
    GUEST_HEADER_MAX,
    MAGIC,
    Frame,
    FrameDecoder,
    FrameError,
    encode_frame,
    key_of,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
VALUES = st.one_of(NAMES, st.integers(-(1 << 53), 1 << 53), st.booleans(), st.lists(NAMES, max_size=4))
FRAMES = st.builds(Frame, st.dictionaries(NAMES, VALUES, max_size=5), st.binary(max_size=200))


def greeted(key: int) -> FrameDecoder:
    return FrameDecoder(key=key, is_greeted=True)


def take_all(decoder: FrameDecoder) -> list[Frame]:
    taken = []
    while (frame := decoder.take()) is not None:
        taken.append(frame)
    return taken


@given(st.lists(FRAMES, max_size=5), st.integers(0, (1 << 32) - 1), st.integers(1, 50))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[Frame], key: int, step: int) -> None:
    stream = b"".join(encode_frame(frame, key) for frame in frames)
    decoder, taken = greeted(key), []
    for start in range(0, len(stream), step):
        decoder.feed(stream[start : start + step])
        taken += take_all(decoder)
    assert taken == frames


def test_bytes_that_are_not_utf8_come_back_as_they_are() -> None:
    name = os.fsdecode(b"\xff\xfe/\xc3(")
    decoder = greeted(1)
    decoder.feed(encode_frame(Frame({"name": name}), 1))
    assert decoder.take() == Frame({"name": name})


@given(st.binary(max_size=300), st.lists(FRAMES, min_size=1, max_size=3))
def test_before_the_greeting_noise_is_skipped(noise: bytes, frames: list[Frame]) -> None:
    decoder = FrameDecoder()
    decoder.feed(noise.replace(MAGIC, b"") + b"".join(encode_frame(frame, 0) for frame in frames))
    taken = take_all(decoder)
    assert taken[-len(frames) :] == frames or noise.endswith(tuple(MAGIC[:n] for n in range(1, 4)))


def test_an_older_sessions_frames_are_skipped_before_the_greeting_and_refused_after_it() -> None:
    older, hello = encode_frame(Frame({"id": 7}, b"old"), key_of("older")), encode_frame(Frame({"hello": "n"}), 0)
    decoder = FrameDecoder()
    decoder.feed(older[5:] + older + hello)
    assert take_all(decoder) == [Frame({"hello": "n"})]
    decoder.is_greeted, decoder.key = True, key_of("n")
    decoder.feed(older)
    with pytest.raises(FrameError):
        decoder.take()


@given(FRAMES, st.data())
def test_a_flipped_bit_is_noticed(frame: Frame, data: st.DataObject) -> None:
    stream = bytearray(encode_frame(frame, 5))
    place = data.draw(st.integers(0, 8 * len(stream) - 1))
    stream[place // 8] ^= 1 << place % 8
    decoder = greeted(5)
    decoder.feed(bytes(stream))
    with pytest.raises(FrameError):
        decoder.take()


def raw_frame(header: bytes, body: bytes = b"", *, header_len: int | None = None, body_len: int | None = None) -> bytes:
    lens = (len(header) if header_len is None else header_len, len(body) if body_len is None else body_len)
    prefix = MAGIC + struct.pack("<II", *lens)
    return prefix + struct.pack("<II", zlib.crc32(prefix), zlib.crc32(header + body)) + header + body


@pytest.mark.parametrize(
    "header",
    [b"", b"[]", b"1", b"null", b"{", b'{"a":}', b"\xff", b"[" * 50_000, b"{" * 50_000, b'"' + b"x" * 60_000, b"NaN"],
    ids=range(11),
)
def test_a_header_that_is_no_object_is_refused(header: bytes) -> None:
    decoder = greeted(0)
    decoder.feed(raw_frame(header))
    with pytest.raises(FrameError):
        decoder.take()


@pytest.mark.parametrize(
    "lens", [{"header_len": GUEST_HEADER_MAX + 1}, {"body_len": GUEST_BODY_MAX + 1}, {"body_len": (1 << 32) - 1}]
)
def test_a_giant_frame_is_refused_before_it_is_waited_for(lens: dict[str, int]) -> None:
    decoder = greeted(0)
    decoder.feed(raw_frame(b"{}", **lens))
    with pytest.raises(FrameError):
        decoder.take()


def test_what_init_would_not_take_is_refused_before_it_is_sent() -> None:
    with pytest.raises(CallRefused, match="too large"):
        encode_frame(Frame({"argv": ["x" * (1 << 20)]}), 0)
    with pytest.raises(CallRefused, match="too large"):
        encode_frame(Frame({}, bytes(BODY_MAX + 1)), 0)
    with pytest.raises(CallRefused, match="NUL"):
        encode_frame(Frame({"path": "/a\0b"}), 0)
    with pytest.raises(CallRefused, match="half a surrogate pair"):
        encode_frame(Frame({"path": "/\ud800"}), 0)


def test_a_backslash_before_zeros_is_no_nul() -> None:
    frame = Frame({"path": "\\u0000"})
    decoder = greeted(0)
    decoder.feed(encode_frame(frame, 0))
    assert decoder.take() == frame
    assert json.loads('"\\\\u0000"') == "\\u0000"
