"""A server of one's own for the length of a measurement: `benthic serve` in a process beside this one."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benthic.errors import BenchError

_READY = re.compile(r" is ready at (http://\S+)")
_END_S = 30


@contextmanager
def running_server(words: Sequence[str]) -> Iterator[str]:
    """The URL of `benthic serve` with further command-line words, on a free port.

    Raises:
        BenchError: it ends before it is ready; its last words are in the message.
    """
    command = [sys.executable, "-u", "-m", "benthic", "serve", "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said: list[str] = []
        url = None
        for line in process.stdout:
            said.append(line.strip())
            if found := _READY.search(line):
                url = found.group(1)
                break
        if url is None:
            raise BenchError(f"the server ended with {process.wait()} before it was ready: {' '.join(said[-3:])}")
        # Its output is read to the end: a full pipe would stop it in the middle of the measurement.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        try:
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
