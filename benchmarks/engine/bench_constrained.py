"""What a grammar costs: tokens a second of answers under a JSON schema beside free ones.

    python benchmarks/engine/bench_constrained.py [--model tiny] [--batch 16] [--tokens 256] [--temperature 1]

Two engines over the same weights answer the same prompts, one without a grammar, the other under a schema that asks for
a longer list than there are tokens. They take turns pass by pass, each going first every other time, so that a machine
whose speed drifts slows both; the ratio is the median of the pairs' ratios. Prompts are computed, and the schema
compiled, before the clock starts.
"""

import argparse
import random
import statistics
import time

from benthic.engine.config import EngineConfig
from benthic.engine.cpu import prepare_products
from benthic.engine.engine import Engine
from benthic.engine.grammar import Grammar
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.checkpoint import load_model
from benthic.models.checkpoint.load import resolve
from benthic.text.grammar import json_schema_grammar
from benthic.text.grammar_masks import grammar_masks

PROMPT_LEN = 64
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["red", "green", "blue"]},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 3},
            "note": {"type": ["string", "null"], "maxLength": 20},
            "is_new": {"type": "boolean"},
        },
        "required": ["name", "kind", "sizes", "note", "is_new"],
        "additionalProperties": False,
    },
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="tiny")
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--tokens", type=int, default=256)
    arguments.add_argument("--temperature", type=float, default=1.0)
    options = arguments.parse_args()
    prepare_products(1)
    folder = resolve(options.model)
    model = load_model(folder, progress=False).freeze()
    masks = grammar_masks(str(folder), model.config.vocab_size)
    config = EngineConfig(max_num_seqs=options.batch, max_model_len=1024, drafter="none", cache_bytes=1 << 27)
    spec = json_schema_grammar(SCHEMA, "schema")
    kinds = {"free": None, "schema": Grammar(spec.key("bench"), spec.payload, None)}
    engines = {name: Engine(model, config, masks=masks) for name in kinds}
    for tokens in (8, options.tokens):  # the first time, what is compiled on first use is compiled
        for name, engine in engines.items():
            begin(engine, kinds[name], options.batch, tokens, options.temperature)
        seconds = take_turns(list(engines.values()))
    free, schema = (statistics.median(own) for own in seconds)
    ratio = statistics.median(one / other for one, other in zip(*seconds, strict=True))
    print(f"free    {options.batch / free:8.1f} tokens/s\nschema  {options.batch / schema:8.1f} tokens/s")
    print(f"batch {options.batch}, {len(seconds[0])} pairs of passes: under a schema {ratio:.3f} of the free rate")


def begin(engine: Engine, grammar: Grammar | None, batch: int, num_tokens: int, temperature: float) -> None:
    """Queues the requests and computes their prompts."""
    rng = random.Random(0)
    params = SamplingParams(max_tokens=num_tokens, temperature=temperature, seed=1, ignore_eos=True, grammar=grammar)
    for number in range(batch):
        prompt = tuple(rng.randrange(300, 1500) for _ in range(PROMPT_LEN))
        engine.add(Request(request_id=str(number), prompt_ids=prompt, params=params, use_cache=False))
    wanted = engine.stats().num_generated_tokens + batch
    while engine.stats().num_generated_tokens < wanted:
        engine.step()


def take_turns(engines: list[Engine]) -> tuple[list[float], list[float]]:
    """Seconds of each pass of the two engines, until both have answered."""
    seconds: tuple[list[float], list[float]] = ([], [])
    while engines[0].has_work():
        for place in ((0, 1), (1, 0))[len(seconds[0]) % 2]:
            started = time.perf_counter()
            events = engines[place].step()
            seconds[place].append(time.perf_counter() - started)
            finals = [event for event in events if isinstance(event, FinalOutput)]
            assert all(final.finish_reason == "length" for final in finals), finals
    assert not engines[1].has_work()
    return seconds


if __name__ == "__main__":
    main()
