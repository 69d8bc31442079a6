"""Benthic beside transformers on the same weights, one CPU thread each, in one run.

    python benchmarks/engine/bench_against_transformers.py [--model tiny] [--repeats 5]

Both generate greedily in float32. Each repeat measures one system right after the other, so that a machine whose speed
drifts slows both; the ratio is the median of the repeats' ratios. Decode figures subtract the prompt's own time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import benthic
from benthic.engine.cpu import prepare_products

PROMPT = 200
LONG_PROMPT = 2000
NEW_TOKENS = 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="tiny")
    arguments.add_argument("--repeats", type=int, default=5)
    options = arguments.parse_args()
    prepare_products(1)
    ours = Ours(options.model)
    theirs = Theirs(ours.llm)
    cases: list[tuple[str, Callable[[Any], float], str]] = [
        ("single stream", lambda system: decode_rate(system, 1), "tokens/s"),
        ("batch 32", lambda system: decode_rate(system, 32), "tokens/s"),
        (f"prefill {LONG_PROMPT}", lambda system: LONG_PROMPT / system.seconds(1, LONG_PROMPT, 1), "tokens/s"),
        (f"first token of {PROMPT}", lambda system: 1 / system.seconds(1, PROMPT, 1), "1/s"),
    ]
    for system in (ours, theirs):
        system.seconds(1, PROMPT, 4)
    print(f"{'case':<20} {'unit':<9} {'benthic':>9} {'transformers':>13} {'ratio':>6} {'spread':>13}")
    for name, measure, unit in cases:
        pairs = [(measure(ours), measure(theirs)) for _ in range(options.repeats)]
        ratios = sorted(a / b for a, b in pairs)
        mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        spread = f"{ratios[0]:.2f}-{ratios[-1]:.2f}"
        print(f"{name:<20} {unit:<9} {mine:9.1f} {other:13.1f} {statistics.median(ratios):6.2f} {spread:>13}")


def decode_rate(system: Any, batch: int) -> float:
    """Tokens a second of all sequences after the prompt."""
    long, short = system.seconds(batch, PROMPT, NEW_TOKENS + 1), system.seconds(batch, PROMPT, 1)
    return batch * NEW_TOKENS / (long - short)


def prompt_ids(number: int, length: int, vocab_size: int) -> list[int]:
    """A fixed pseudo-random prompt, another for each number."""
    return [100 + (number * 7919 + i * 104729) % (vocab_size - 200) for i in range(length)]


class Ours:
    """Benthic's engine."""

    def __init__(self, model: str) -> None:
        self.llm = benthic.LLM(model)

    def seconds(self, batch: int, prompt_len: int, new_tokens: int) -> float:
        prompts = [prompt_ids(i, prompt_len, self.llm.model.config.vocab_size) for i in range(batch)]
        params = benthic.SamplingParams(max_tokens=new_tokens, temperature=0, ignore_eos=True)
        start = time.perf_counter()
        outputs = self.llm.generate(prompts, params)
        elapsed = time.perf_counter() - start
        assert all(len(output.outputs[0].token_ids) == new_tokens for output in outputs)
        return elapsed


class Theirs:
    """transformers' DeepseekV4ForCausalLM with the same weights."""

    def __init__(self, llm: benthic.LLM) -> None:
        import torch
        from transformers import DeepseekV4ForCausalLM

        from benthic.models.checkpoint import save_checkpoint

        torch.set_num_threads(1)
        self.vocab_size = llm.model.config.vocab_size
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(llm.model, folder, layout="hf", weights="fp32")
            self.model = DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def seconds(self, batch: int, prompt_len: int, new_tokens: int) -> float:
        import torch

        ids = torch.tensor([prompt_ids(i, prompt_len, self.vocab_size) for i in range(batch)])
        start = time.perf_counter()
        with torch.no_grad():
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=2,
            )
        elapsed = time.perf_counter() - start
        assert output.shape[1] == prompt_len + new_tokens
        return elapsed


if __name__ == "__main__":
    main()
