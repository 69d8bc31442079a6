"""One request, again and again, while everything else happens: it has one answer.

Around the probe, requests of every kind come and go: some share its beginning, some are cancelled, some need so much
room that others are retracted; the cache is flushed now and then. Arrivals, batches, rows, chunks, hits, replays,
accepted drafts and retractions are then different for every run of the probe.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.kernels.sample import cpu
from tests.exactness.serving import Bits, alone, ids, random_request, request
from tests.exactness.shapes import SHAPES, engine_config, model_of

RUNS, NIGHTLY_RUNS = 25, 250
"""Of each engine below: a hundred together, a thousand at night."""

ENGINES = {
    "no drafts": {"overlap_steps": 0},
    "one pass ahead": {"overlap_steps": 1, "prefill_chunk": 21},
    "text drafts": {"drafter": "ngram", "draft_len": 3, "retention": "every_page"},
    "model drafts": {"drafter": "mtp", "draft_len": 2, "retention": "none", "overlap_steps": 1},
}
NAME = "pages of 16"
PROBE = request("probe", ids(random.Random(42), 45), max_tokens=8, temperature=0.9, seed=5)


@dataclass
class Load:
    """An engine under random load, and what the probes in it came to."""

    engine: Engine
    rng: random.Random
    answers: Counter[Bits] = field(default_factory=Counter)
    hits: Counter[int] = field(default_factory=Counter)
    retracted: int = 0
    _probes: set[str] = field(default_factory=set)
    _others: list[str] = field(default_factory=list)
    _number: int = 0

    def run(self, runs: int) -> None:
        """Until so many probes have been answered."""
        while self.answers.total() < runs:
            if len(self._probes) < 3 and self.rng.random() < 0.5:
                self._probes.add(self._add(PROBE.prompt_ids, PROBE))
            if self.engine.stats().num_waiting < 4 and self.rng.random() < 0.35:
                self._others.append(self._add_other())
            if self._others and self.rng.random() < 0.05:
                self.engine.cancel(self.rng.choice(self._others))
            if self.rng.random() < 0.01:
                self.engine.flush()
            for event in self.engine.step():
                if isinstance(event, FinalOutput):
                    self._take(event)

    def _add_other(self) -> str:
        other = random_request(self.rng, "", longest=200, max_tokens=16)
        beginning = PROBE.prompt_ids[: self.rng.choice((0, 0, 10, 16, 32, 45))]
        return self._add((*beginning, *other.prompt_ids), other)

    def _add(self, prompt_ids: tuple[int, ...], like: Request) -> str:
        self._number += 1
        name = f"r{self._number}"
        self.engine.add(
            Request(
                request_id=name,
                prompt_ids=prompt_ids,
                params=like.params,
                priority=self.rng.choice((0, 0, 1)),
                use_cache=self.rng.random() < 0.8,
            )
        )
        return name

    def _take(self, final: FinalOutput) -> None:
        if final.request_id not in self._probes:
            self._others = [name for name in self._others if name != final.request_id]
            return
        self._probes.remove(final.request_id)
        self.answers[Bits.of(final)] += 1
        assert final.report is not None
        self.hits[final.report.usable_match] += 1
        self.retracted += final.report.num_retractions


def load_on(name: str, **changes: object) -> Load:
    config = engine_config(
        NAME, **{"max_num_seqs": 6, "max_batched_tokens": 64, "debug_checks": False, **ENGINES[name], **changes}
    )
    return Load(Engine(model_of(NAME), config), random.Random(name))


@pytest.mark.parametrize("name", ENGINES)
def test_every_run_under_random_load_has_the_same_answer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_one_answer(name, RUNS, capsys)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", ENGINES)
def test_a_thousand_runs_under_random_load_have_one_answer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_one_answer(name, NIGHTLY_RUNS, capsys)


def check_one_answer(name: str, runs: int, capsys: pytest.CaptureFixture[str]) -> None:
    load = load_on(name)
    load.run(runs)
    with capsys.disabled():
        print(f"\n{name}: {load.answers.total()} runs, {len(load.answers)} distinct answer(s), hits {dict(load.hits)}")
    assert load.answers == {alone(model_of(NAME), PROBE, SHAPES[NAME].page_size): load.answers.total()}
    assert len(load.hits) > 1, "the probe was served in one way only"


def test_sampling_from_a_shared_stream_would_be_found(cpu_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: random numbers that depend on who came before."""
    stream = torch.Generator().manual_seed(0)

    def shared(seeds: Tensor, positions: Tensor) -> Tensor:
        return torch.rand(seeds.shape, generator=stream, dtype=torch.float64)

    monkeypatch.setattr(cpu, "uniform", shared)
    load = load_on("no drafts")
    load.run(10)
    assert len(load.answers) > 1
