"""What guidellm measures from outside beside what /metrics says of the same requests.

    BENTHIC_GUIDELLM=/path/to/guidellm python -m benchmarks.server.guidellm_agreement
        [--url http://127.0.0.1:8000] [--requests 200] [--concurrency 32] [--prompt 512] [--answer 16]

Without a URL a server is started over the bundled model. Nobody else may use the server meanwhile. While guidellm runs,
/metrics is read four times a second; the server's throughput is its generated tokens over the time in which sequences
were open, which that is enough to know within half a second.
"""

import argparse
import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.server.outside import MODEL, OFFLINE, find_program, serving

VARIABLE = "BENTHIC_GUIDELLM"
ROUTE = "/v1/chat/completions"
_ANSWERED = "benthic_requests_total"
_POLL_S = 0.25
Figures = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Load:
    """What guidellm is told to send; lengths in tokens.

    Prompts are long enough that the server's own time outweighs the milliseconds by which the tool sees a token later
    than the server sends it: on two cores it shares them with what it measures.
    """

    requests: int = 200
    concurrency: int = 32
    prompt: int = 512
    answer: int = 16


class Row(NamedTuple):
    """One figure, as either side has it."""

    name: str
    guidellm: float
    metrics: float

    @property
    def difference(self) -> float:
        """How far the server's figure is from guidellm's, as a share of it."""
        return abs(self.metrics - self.guidellm) / self.guidellm if self.guidellm else float(self.metrics != 0)


class Watch:
    """Reads /metrics while something runs, and remembers when sequences were open."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=30)
        self._is_over = threading.Event()
        self._busy: list[float] = []
        self.before, self.after = self.read(), Figures()

    @property
    def busy_s(self) -> float:
        """Seconds from the first look at open sequences to the last one."""
        return self._busy[-1] - self._busy[0] + _POLL_S if self._busy else 0.0

    def read(self) -> Figures:
        """Every sample without labels by its name, and answered requests of the route as `requests`."""
        figures: Figures = {"requests": 0.0}
        for family in text_string_to_metric_families(self._client.get("/metrics").raise_for_status().text):
            for sample in family.samples:
                if not sample.labels:
                    figures[sample.name.removeprefix("benthic_")] = sample.value
                elif sample.name == _ANSWERED and sample.labels == {"route": ROUTE, "status": "200"}:
                    figures["requests"] = sample.value
        return figures

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Reads for as long as the block lasts."""
        thread = threading.Thread(target=self._poll)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
            self.after = self.read()
            self._client.close()

    def grown(self, name: str) -> float:
        """By how much a counter has grown."""
        return self.after[name] - self.before.get(name, 0.0)

    def mean(self, name: str) -> float:
        """The mean of what a histogram has seen meanwhile."""
        return self.grown(f"{name}_sum") / max(1.0, self.grown(f"{name}_count"))

    def _poll(self) -> None:
        while not self._is_over.wait(_POLL_S):
            if self.read()["open_sequences"]:
                self._busy.append(time.monotonic())


def measure(program: str, url: str, load: Load) -> list[Row]:
    """Let guidellm send its requests, and set its figures beside the server's.

    Raises:
        RuntimeError: guidellm fails, or one of its requests did.
    """
    watch = Watch(url)
    with tempfile.TemporaryDirectory() as folder, watch.watching():
        report = _run(program, url, load, Path(folder) / "report.json")
    totals, metrics = report["metrics"]["request_totals"], report["metrics"]
    if totals["successful"] != load.requests or totals["errored"] or totals["incomplete"]:
        raise RuntimeError(f"of {load.requests} requests of guidellm not all went well: {totals}")

    def of(name: str, what: str = "mean") -> float:
        return float(metrics[name]["successful"][what])

    return [
        Row("requests", totals["successful"], watch.grown("requests")),
        Row("prompt tokens", of("prompt_token_count", "total_sum"), watch.grown("prompt_tokens_total")),
        Row("generated tokens", of("output_token_count", "total_sum"), watch.grown("generation_tokens_total")),
        Row("time to first token, s", of("time_to_first_token_ms") / 1e3, watch.mean("time_to_first_token_seconds")),
        Row("time between tokens, s", of("inter_token_latency_ms") / 1e3, watch.mean("inter_token_latency_seconds")),
        Row("time of a request, s", of("request_latency"), watch.mean("e2e_request_latency_seconds")),
        Row(
            "generated tokens a second",
            of("output_token_count", "total_sum") / report["duration"],
            watch.grown("generation_tokens_total") / watch.busy_s,
        ),
    ]


def table(rows: list[Row]) -> str:
    """The rows as text."""
    head = f"{'':28}{'guidellm':>12}{'/metrics':>12}{'differ by':>12}"
    lines = [f"{row.name:28}{row.guidellm:12.4g}{row.metrics:12.4g}{row.difference:12.2%}" for row in rows]
    return "\n".join([head, *lines])


def _run(program: str, url: str, load: Load, path: Path) -> dict[str, Any]:
    data = f"kind=synthetic_text,prompt_tokens={load.prompt},output_tokens={load.answer}"
    command = [
        *(program, "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={url},model=tiny"),
        *("--tokenizer", f"kind=hf_auto,model={MODEL}"),
        *("--data", data),
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--output", f"kind=json,path={path}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**environ, **OFFLINE}, check=False)
    if done.returncode:
        raise RuntimeError(f"guidellm ended with {done.returncode}: {done.stderr[-2000:]}")
    benchmark: dict[str, Any] = json.loads(path.read_text())["benchmarks"][0]
    return benchmark


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--url")
    for name, value in vars(Load()).items():
        arguments.add_argument(f"--{name}", type=int, default=value)
    options = vars(arguments.parse_args())
    url = options.pop("url")
    program = find_program(VARIABLE, "guidellm")
    if program is None:
        raise SystemExit(f"guidellm is not on PATH; install it in an environment of its own and set {VARIABLE}")
    if url:
        print(table(measure(program, url, Load(**options))))
        return
    with serving() as started:
        print(table(measure(program, started.url, Load(**options))))


if __name__ == "__main__":
    main()
