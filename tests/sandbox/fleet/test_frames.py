"""What travels beside JSON arrives whole, in pieces of any size, or is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import RequestError
from benthic.sandbox.fleet.frames import (
    Frame,
    FrameReader,
    answer_frame,
    answer_of,
    item_frame,
    item_of,
    one_frame,
    request_frame,
    request_of,
)
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.records import Chunk

ANSWER = Answer(value={"a": [1, None]}, data=b"\x00\n\xff", error="PathError", seq=7, is_replayed=True)
REQUEST = Request(verb="write", arguments={"path": "/a\n"}, data=b"{}\n")


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.integers(1, 17))
def test_frames_arrive_in_pieces_of_any_size(contents: list[bytes], size: int) -> None:
    frames = [Frame("chunk", {"stream": "stdout"}, content) for content in contents]
    whole = b"".join(frame.to_bytes() for frame in frames)
    reader = FrameReader()
    read = [f for start in range(0, len(whole), size) for f in reader.feed(whole[start : start + size])]
    assert read == frames
    assert reader.is_between_frames


def test_requests_answers_and_chunks_survive() -> None:
    assert request_of(one_frame(request_frame(REQUEST).to_bytes())) == REQUEST
    assert answer_of(one_frame(answer_frame(ANSWER).to_bytes())) == ANSWER
    for item in (ANSWER, Chunk("stderr", b"\xfe")):
        assert item_of(one_frame(item_frame(item).to_bytes())) == item


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"nonsense\n",
        b"[]\n",
        b'{"type": 3}\n',
        b'{"type": "a", "num_bytes": -1}\n',
        b'{"type": "a", "num_bytes": 1e9}\n',
        b'{"type": "a", "num_bytes": true}\n',
        b'{"type": "a", "num_bytes": 99999999999999}\n',
        b'{"type": "a", "num_bytes": 2}\nx',
        b'{"type": "a", "num_bytes": 0}\nx',
        b'{"type": "a"}\n{"type": "a"}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        one_frame(body)


@pytest.mark.parametrize("verb", ["exek", 3, None])
def test_a_call_of_no_verb_is_refused(verb: object) -> None:
    with pytest.raises(RequestError, match="verb"):
        request_of(Frame("request", {"verb": verb, "arguments": {}}))
