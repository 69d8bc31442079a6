"""One child that tries grammars out, from its launch to its end. Used by one thread."""

import base64
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from benthic.errors import BadSchema, ConfigError

_START_S = 60.0
"""How long a child may take to load the library and the vocabulary."""
_END_S = 5.0


class GrammarTrial:
    """Asks a child whether grammars compile, and ends it when one takes too long; the next question starts another.

    Args:
        path: the tokenizer.json.
        timeout_s: seconds for one grammar.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._problem = ""
        """Why the last child could not start."""

    @property
    def pid(self) -> int | None:
        """Process id of the child, if there is one."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Has a child, another one if the last has gone.

        Raises:
            ConfigError: none can be had.
        """
        if self._child is not None and self._child.poll() is not None:
            self.close()
        if self._child is None and not self._launch() and not self._launch():  # one may be killed at its start
            raise ConfigError(f"grammars cannot be compiled: {self._problem}")

    def check(self, payload: bytes, prefix: str) -> str:
        """Asks the child that was started; returns why the grammar cannot be used, empty if it can.

        Raises:
            BadSchema: two children died of it; nothing is known of the grammar.
            ConfigError: the child died, and there is no other.
        """
        answer = self._ask(payload, prefix)
        if answer is None:  # somebody may have killed it, whatever it was at
            self.start()
            answer = self._ask(payload, prefix)
        if answer is None:
            raise BadSchema("the process that compiled the grammar ended; make it simpler or smaller")
        return answer

    def _ask(self, payload: bytes, prefix: str) -> str | None:
        child = self._child
        assert child is not None, "start() comes first"
        request = {"payload": base64.b64encode(payload).decode(), "prefix": prefix}
        answer = None
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
            answer = self._read(child, self._timeout_s)
        except TimeoutError:
            self.close()
            return f"compiling it takes more than {self._timeout_s:g} seconds; make it simpler or smaller"
        except OSError:  # it has gone
            pass
        if answer is None:
            self.close()
        return answer

    def close(self) -> None:
        """Ends the child."""
        child, self._child, self._pending = self._child, None, b""
        if child is None:
            return
        child.kill()
        child.wait(_END_S)
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:  # what it did not read
                continue

    def _launch(self) -> bool:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        self._child = child = subprocess.Popen(
            [sys.executable, "-m", "benthic.text.grammar_child", str(self._path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C in a terminal is for the parent
        )
        try:
            answer = self._read(child, _START_S)
        except TimeoutError:
            answer = f"it was not ready after {_START_S:g} seconds"
        if answer == "":
            return True
        self.close()
        self._problem = answer or "the process for them ended at its start"
        return False

    def _read(self, child: "subprocess.Popen[bytes]", timeout_s: float) -> str | None:
        """The error in the next line, empty for none; None when the child has gone.

        Raises:
            TimeoutError: no line came in time.
        """
        assert child.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([child.stdout], [], [], left)[0]:
                raise TimeoutError
            more = os.read(child.stdout.fileno(), 1 << 16)
            if not more:
                return None
            self._pending += more
        line, _, self._pending = self._pending.partition(b"\n")
        return str(json.loads(line).get("error", ""))
