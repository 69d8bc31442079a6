"""From `git clone` to the first streamed answer, timed: what a newcomer waits for.

`make first-answer` clones this repository into an empty folder, runs `make serve` there, and asks as soon as the server
says that it is ready. Compiled kernels are not taken from this user's cache; packages are, where pip has any.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
GOAL_S = 180.0
QUESTION = {"messages": [{"role": "user", "content": "What is 347 + 285?"}], "model": "tiny", "stream": True}


def first_words(url: str) -> str:
    """The text of the first chunk that has any."""
    request = Request(f"{url}/chat/completions", json.dumps(QUESTION).encode(), {"content-type": "application/json"})
    with urlopen(request, timeout=120) as reply:
        for line in reply:
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if text := choice["delta"].get("content") or choice["delta"].get("reasoning_content"):
                        return str(text)
    raise SystemExit("the server's stream ended without a word")


def serve(folder: Path, environment: dict[str, str]) -> tuple["subprocess.Popen[str]", str]:
    """`make serve` in a clone, and the address that it prints."""
    words = ["make", "serve", "ARGS=--port 0"]
    process = subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        print("  " + line, end="")
        if found := re.search(r"http://[\d.:]+/v1", line):
            return process, found.group()
    raise SystemExit("the server ended before it was ready")


def main() -> int:
    """Prints one line a part; 0 if the goal was met."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "benthic"
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(Path(place) / "numba"), "PYTHONUNBUFFERED": "1"}
        times = [time.monotonic()]
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        times.append(time.monotonic())
        process, url = serve(folder, environment)
        try:
            times.append(time.monotonic())
            words = first_words(url)
            times.append(time.monotonic())
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)
    parts = [after - before for before, after in zip(times, times[1:], strict=False)]
    names = ("git clone", "make serve, until it is ready", f"first words ({words.strip()!r})")
    for name, seconds in zip(names, parts, strict=True):
        print(f"{seconds:8.1f} s  {name}")
    print(f"{sum(parts):8.1f} s  in all; the goal is {GOAL_S:.0f} s")
    return 0 if sum(parts) <= GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
