"""What follows logits on CUDA: sampling with and without cuts, log-probabilities; and the router's choice.

python benchmarks/kernels/bench_tokens_cuda.py [--only sample] [--out benchmarks/results/h200.jsonl]
"""

from collections.abc import Iterator
from functools import partial

import torch
from cuda_timing import Case, main, num_sets
from torch import Tensor

from benthic.kernels.cross_entropy import ranked_logprobs
from benthic.kernels.moe_route import route_rows
from benthic.kernels.sample import sample
from benthic.kernels.sample.cases import inputs

VOCAB_SIZE, EXPERTS, TOP_K = 129280, 256, 6


def cases() -> Iterator[Case]:
    """Rows of a decoding step; for routing also those of a chunk."""
    for rows in (1, 32, 128):
        sets = [_settings(rows) for _ in range(num_sets(4 * rows * VOCAB_SIZE, 16))]
        plain = [given | {"top_k": None, "top_p": None, "min_p": None} for given in sets]
        num_bytes = 4 * rows * VOCAB_SIZE
        for name, settings in (("sample", plain), ("sample with cuts", sets)):
            implementations = {
                impl: [partial(sample, **given, impl=impl) for given in settings] for impl in ("triton", "reference")
            }
            yield Case(f"{name} x {rows}", implementations, num_bytes)
        for count in (0, 5, 20):
            implementations = {
                impl: [
                    partial(ranked_logprobs, given["logits"], given["seeds"] % 1000, count, impl=impl) for given in sets
                ]
                for impl in ("auto", "reference")
            }
            yield Case(f"log-probability and {count} x {rows}", implementations, num_bytes)
    for rows in (1, 32, 128, 8192):
        logits, bias = torch.randn(rows, EXPERTS, device="cuda"), torch.randn(EXPERTS, device="cuda")
        route = partial(route_rows, logits, top_k=TOP_K, scale=1.5, bias=bias)
        implementations = {impl: [partial(route, impl=impl)] for impl in ("auto", "reference")}
        yield Case(f"route x {rows}", implementations, logits.nbytes)


def _settings(rows: int) -> dict[str, Tensor]:
    given = inputs(rows, vocab_size=VOCAB_SIZE, temperature=0.8, top_k=50, top_p=0.9, min_p=0.0)
    return {name: value.cuda() for name, value in given.items()}


if __name__ == "__main__":
    main("tokens", cases)
