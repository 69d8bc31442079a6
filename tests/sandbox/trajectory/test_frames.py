"""What a crash may do to a log and what it may not: all damage is either dropped or reported, and never guessed at."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.sandbox.errors import TrajectoryCorrupt
from benthic.sandbox.trajectory import frames
from benthic.sandbox.trajectory.frames import CHAIN_START, SECTOR_BYTES, Frame

PAYLOADS = [(b'{"a":1}', b""), (b'{"b":2}', b"\0" * 700), (b'{"c":3}', b"x" * 1500), (b'{"d":4}', b"tail")]


def written(payloads: list[tuple[bytes, bytes]], synced: list[int] | None = None) -> tuple[bytes, list[Frame]]:
    """A file of frames, each knowing all before it to be on disk unless `synced` says otherwise."""
    whole, found, chain = b"", [], CHAIN_START
    for index, (text, data) in enumerate(payloads):
        known = len(whole) if synced is None else synced[index]
        part, frame = frames.encode(text, data, start=len(whole), synced=known, chain=chain)
        whole, chain = whole + part, frame.chain
        found.append(frame)
    return whole, found


def scanned(path: Path, content: bytes) -> frames.Scan:
    descriptor = os.memfd_create(path.name)
    try:
        os.pwrite(descriptor, content, 0)
        return frames.scan(descriptor, path)
    finally:
        os.close(descriptor)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    whole, expected = written(PAYLOADS)
    found = scanned(tmp_path / "log", whole)
    assert found.frames == expected
    assert found.payloads == [text for text, _ in PAYLOADS]
    assert (found.torn_bytes, found.end) == (0, len(whole))


def test_an_empty_file_is_an_empty_log(tmp_path: Path) -> None:
    assert scanned(tmp_path / "log", b"").end == 0


def test_a_file_cut_at_any_byte_keeps_all_whole_frames(tmp_path: Path) -> None:
    whole, expected = written(PAYLOADS)
    for length in range(len(whole)):
        found = scanned(tmp_path / "log", whole[:length])
        kept = [frame for frame in expected if frame.end <= length]
        assert found.frames == kept, length
        assert found.torn_bytes == length - found.end, length


def test_a_flip_of_any_bit_is_reported(tmp_path: Path) -> None:
    whole, _ = written([(b'{"a":1}', b"yes"), (b'{"b":2}', b"no"), (b'{"c":3}', b"")])
    for place in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[place] ^= 1 << bit
            with pytest.raises(TrajectoryCorrupt):
                scanned(tmp_path / "log", bytes(flipped))


def test_a_record_taken_out_copied_or_moved_is_reported(tmp_path: Path) -> None:
    whole, found = written(PAYLOADS)
    parts = [whole[frame.start : frame.end] for frame in found]
    for order in ([0, 2, 3], [1, 2, 3], [0, 1, 1, 2, 3], [0, 2, 1, 3], [0, 1, 3, 2]):
        with pytest.raises(TrajectoryCorrupt):
            scanned(tmp_path / "log", b"".join(parts[index] for index in order))


def test_a_record_of_another_log_is_reported(tmp_path: Path) -> None:
    whole, found = written(PAYLOADS)
    other, others = written([(b'{"z":1}', b""), *PAYLOADS[1:]])
    mixed = whole[: found[1].end] + other[others[1].end :]
    with pytest.raises(TrajectoryCorrupt, match="does not follow"):
        scanned(tmp_path / "log", mixed)


def test_a_hole_that_was_never_synced_is_dropped_with_all_behind_it(tmp_path: Path) -> None:
    whole, found = written(PAYLOADS, synced=[0, 0, 0, 0])
    hole = bytearray(whole)
    sector = -(-found[2].start // SECTOR_BYTES) * SECTOR_BYTES
    hole[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    kept = scanned(tmp_path / "log", bytes(hole))
    assert kept.frames == found[:2]
    assert kept.torn_bytes == len(whole) - found[1].end


def test_the_same_hole_is_reported_where_a_later_record_knows_it_was_synced(tmp_path: Path) -> None:
    whole, found = written(PAYLOADS)
    hole = bytearray(whole)
    sector = -(-found[2].start // SECTOR_BYTES) * SECTOR_BYTES
    hole[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)
    with pytest.raises(TrajectoryCorrupt, match="safely on disk"):
        scanned(tmp_path / "log", bytes(hole))


ROOM = bytes(5000)


def test_zeros_behind_the_last_record_are_room_for_the_next(tmp_path: Path) -> None:
    whole, found = written(PAYLOADS)
    kept = scanned(tmp_path / "log", whole + ROOM)
    assert kept.frames == found
    assert kept.torn_bytes == 0


def test_room_behind_the_last_record_hides_no_flipped_bit_of_it(tmp_path: Path) -> None:
    whole, found = written(PAYLOADS)
    for place in range(found[-1].start, len(whole)):
        for bit in range(8):
            flipped = bytearray(whole + ROOM)
            flipped[place] ^= 1 << bit
            with pytest.raises(TrajectoryCorrupt):
                scanned(tmp_path / "log", bytes(flipped))


def test_a_record_that_reached_the_disk_in_part_is_dropped_from_its_room(tmp_path: Path) -> None:
    whole, found = written([*PAYLOADS, (b'{"e":5}', b"e" * 3 * SECTOR_BYTES)], synced=[0] * (len(PAYLOADS) + 1))
    last = found[-1]
    edges = range(-(-last.start // SECTOR_BYTES) * SECTOR_BYTES, last.end, SECTOR_BYTES)
    for edge in edges:
        for left in (
            whole[:edge] + bytes(last.end - edge),
            whole[: last.start] + bytes(edge - last.start) + whole[edge:],
        ):
            kept = scanned(tmp_path / "log", left + ROOM)
            assert kept.frames == found[:-1]
            assert 0 < kept.torn_bytes <= last.end - last.start


def test_text_behind_the_last_record_is_reported(tmp_path: Path) -> None:
    whole, _ = written(PAYLOADS)
    with pytest.raises(TrajectoryCorrupt):
        scanned(tmp_path / "log", whole + b"and one more thing\n" * 10)


@st.composite
def power_cuts(draw: st.DrawFn) -> tuple[bytes, bytes, int]:
    """A file, what is left of it after the power went, and how far it had been synced."""
    payloads = draw(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=1200)), min_size=1, max_size=6))
    num_synced = draw(st.integers(0, len(payloads)))
    plain, places = written(payloads)
    durable = places[num_synced - 1].end if num_synced else 0
    whole, _ = written(payloads, [min(frame.start, durable) for frame in places])
    assert len(whole) == len(plain)
    # Either the file has grown with its frames, and is cut anywhere; or there was room, and is some behind it.
    room = draw(st.sampled_from([0, 1, 511, 5000]))
    left = bytearray(whole[: len(whole) if room else draw(st.integers(durable, len(whole)))])
    for sector in range(durable - durable % SECTOR_BYTES, len(left), SECTOR_BYTES):
        if draw(st.booleans()):  # this sector did not reach the disk, beyond what had been there before
            start, end = max(sector, durable), min(sector + SECTOR_BYTES, len(left))
            left[start:end] = bytes(end - start)
    return whole, bytes(left) + bytes(room), durable


@given(power_cuts())
def test_after_any_power_cut_all_that_was_synced_is_there_and_nothing_is_made_up(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[bytes, bytes, int]
) -> None:
    whole, left, durable = case
    found = scanned(tmp_path_factory.getbasetemp() / "power.log", left)
    assert found.end >= durable
    assert whole[: found.end] == left[: found.end]
