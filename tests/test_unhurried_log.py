"""Whoever logs never waits for whoever reads the log."""

import logging
import os
import threading
import time

import pytest

from benthic.telemetry import UnhurriedHandler


@pytest.fixture
def logger() -> logging.Logger:
    logger = logging.Logger("benthic.test")
    logger.setLevel(logging.INFO)
    return logger


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_loses_no_more_than_it_says(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benthic.telemetry.MAX_LINES", 50)
    reading, writing = os.pipe()
    handler = UnhurriedHandler(os.fdopen(writing, "w"))
    logger.addHandler(handler)
    began = time.monotonic()
    for number in range(1000):
        logger.info("line %d %s", number, "x" * 1000)
    assert time.monotonic() - began < 2
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.extend(iter(lambda: os.read(reading, 1 << 16), b"")), daemon=True)
    reader.start()
    handler.flush()
    logger.info("the last one")
    handler.close()
    handler._stream.close()
    reader.join(10)
    lines = b"".join(read).decode().splitlines()
    os.close(reading)
    kept = [line for line in lines if line.startswith("line ")]
    dropped = [int(line[1:].split()[0]) for line in lines if line.startswith("(")]
    assert kept == sorted(kept, key=lambda line: int(line.split()[1]))
    assert len(kept) + sum(dropped) == 1000
    assert 50 <= len(kept) < 1000
    assert lines[-1] == "the last one"


def test_a_reader_that_has_gone_harms_nobody(logger: logging.Logger) -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    handler = UnhurriedHandler(stream)
    logger.addHandler(handler)
    os.close(reading)
    for number in range(10):
        logger.info("line %d", number)
    handler.close()
    assert handler._thread.is_alive()
