"""What guessing ahead brings on the model's own tasks: accepted length and tokens a second, by drafter and depth.

    python benchmarks/engine/bench_speculation.py [--model tiny] [--prompts 32] [--batch 1 8] [--temperature 0]

Prompts are held-out examples of every task, up to where the answer begins. "length" is the mean number of tokens that a
verifying pass gives a request, the model's own included; 1 without drafts. Each line runs on an engine of its own, and
its prompts are computed before the clock starts. Answers are checked to be the same on every line.
"""

import argparse
import random
import time
from dataclasses import dataclass

from benthic.engine.config import EngineConfig
from benthic.engine.cpu import prepare_products
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.checkpoint import load_model
from benthic.models.checkpoint.load import resolve
from benthic.models.transformer import Transformer
from benthic.tasks import held_out_examples

MAX_TOKENS = 128


@dataclass(frozen=True)
class Line:
    """One line of the report."""

    drafter: str
    depth: int
    adaptive: bool = False

    @property
    def name(self) -> str:
        return "none" if self.drafter == "none" else f"{self.drafter} {'up to ' if self.adaptive else ''}{self.depth}"


LINES = (
    Line("none", 1),
    *(Line("mtp", depth) for depth in (1, 2, 3, 4, 6, 8)),
    Line("mtp", 4, adaptive=True),
    *(Line("ngram", depth) for depth in (1, 2, 4, 8)),
    Line("ngram", 8, adaptive=True),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="tiny")
    arguments.add_argument("--prompts", type=int, default=32)
    arguments.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    arguments.add_argument("--temperature", type=float, default=0.0)
    options = arguments.parse_args()
    prepare_products(1)
    model = load_model(options.model, progress=False).freeze()
    requests = task_requests(options.model, options.prompts, options.temperature)
    run(model, requests[:4], Line("mtp", 2), 4)  # compiles what is compiled on first use
    for batch in options.batch:
        print(f"batch {batch}\n{'drafter':<14} {'length':>7} {'accepted':>9} {'tokens/s':>9} {'speed':>6}")
        plain_rate, plain_tokens = 0.0, None
        for line in LINES:
            finals, seconds, num_verified = run(model, requests, line, batch)
            tokens = {name: final.token_ids for name, final in finals.items()}
            plain_tokens = tokens if plain_tokens is None else plain_tokens
            assert tokens == plain_tokens, f"{line.name} changed the answers"
            reports = [final.report for final in finals.values() if final.report is not None]
            drafted, accepted = (sum(getattr(report, name) for report in reports) for name in ("drafted", "accepted"))
            rate = sum(len(own) - 1 for own in tokens.values()) / seconds
            plain_rate = plain_rate or rate
            length = 1 + accepted / num_verified
            share = f"{accepted / drafted:9.0%}" if drafted else f"{'-':>9}"
            print(f"{line.name:<14} {length:7.2f} {share} {rate:9.1f} {rate / plain_rate:5.2f}x", flush=True)


def task_requests(model: str, count: int, temperature: float) -> list[Request]:
    """Prompts of the held-out examination, a random choice among all tasks."""
    examples = held_out_examples(resolve(model) / "tokenizer.json", per_cell=4)
    random.Random(0).shuffle(examples)
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=1)
    return [
        Request(request_id=str(i), prompt_ids=tuple(example.token_ids[: first_answer(example.weights)]), params=params)
        for i, example in enumerate(examples[:count])
    ]


def first_answer(weights: list[float]) -> int:
    """Where the last run of learned tokens begins."""
    end = max(place for place, weight in enumerate(weights) if weight > 0)
    return max(place for place in range(end + 1) if weights[place] > 0 and weights[place - 1] == 0)


def run(
    model: Transformer, requests: list[Request], line: Line, batch: int
) -> tuple[dict[str, FinalOutput], float, int]:
    """Final outputs, seconds of the passes without prompts, and how often a request was given tokens by them."""
    engine = Engine(
        model,
        EngineConfig(
            max_num_seqs=batch,
            drafter=line.drafter,  # type: ignore[arg-type]
            draft_len=line.depth,
            draft_adaptive=line.adaptive,
            max_model_len=2048,
        ),
    )
    finals: dict[str, FinalOutput] = {}
    seconds, num_verified = 0.0, 0
    for start in range(0, len(requests), batch):
        for request in requests[start : start + batch]:
            engine.add(request)
        finals |= {event.request_id: event for event in engine.step() if isinstance(event, FinalOutput)}
        while engine.has_work():
            num_verified += engine.stats().num_running
            started = time.perf_counter()
            events = engine.step()
            seconds += time.perf_counter() - started
            finals |= {event.request_id: event for event in events if isinstance(event, FinalOutput)}
    return finals, seconds, num_verified


if __name__ == "__main__":
    main()
