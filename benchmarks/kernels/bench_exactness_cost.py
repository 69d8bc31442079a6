"""What exactness costs: every kernel in its canonical order beside itself with cuts that follow the number of rows.

    python benchmarks/kernels/bench_exactness_cost.py [--only "fp8 o_b"] [--out benchmarks/results/h200.jsonl]
    python benchmarks/kernels/bench_exactness_cost.py --check [--only fp8]

A kernel of the product adds in one order, whatever is in the pass. Free of that, it might cut a product's inputs or a
list of keys by how many rows there are for how many multiprocessors. Each line: the time of the product's form, the
best free form and its time, and what the product's takes more, in percent; below zero no cut was faster. Where a free
form needs other launches (groups, Triton) the exact order is timed in these too, and the greater difference counts, so
that no cost hides behind how a free form is called.

`--check` compares the results of both forms instead of timing them. Free forms live in free_*.py; the product has none.
"""

import sys
from collections.abc import Callable, Iterator

import torch
from bench_sparse_attention_cuda import KEY_BYTES, WINDOW, ours, random_keys
from cuda_timing import Calls, Case, Measurement, main, num_sets
from free_attention import attend_in_chunks
from free_products import PROCESSORS, bf16_cases, expert_cases, fp8_cases
from free_rows import boundary_cases, compressor_cases, index_cases
from torch import Tensor

ATTENTION_ROWS = (1, 32, 64, 128, 256)
PICKS = (512, 1024)
BLOCK, HEADS, DIM = 64, 64, 512
CHUNKS = (2, 3, 4, 6, 9, 18)
"""Into how many programs a list is cut, if the machine has room for them."""
TOLERANCE = 0.02
"""Of the greatest relative distance (2-norms) between two orders of bf16 or FP8 sums."""


def attention_cases() -> Iterator[Case]:
    """Decode: every row a sequence of its own, 64 heads."""
    for k in PICKS:
        for rows in ATTENTION_ROWS:
            length, blocks = WINDOW + k, (WINDOW + k) // BLOCK
            count = max(2, num_sets(rows * length * KEY_BYTES, 16))
            keys = random_keys(max(rows, 32) * (192 + 2048))
            exact = [ours(HEADS, rows, k, keys, "cuda") for _ in range(count)]
            calls: dict[str, Calls] = {"exact": exact}
            for chunks in CHUNKS:
                each = -(-blocks // chunks)
                if chunks <= blocks and (rows * chunks <= 3 * PROCESSORS or chunks == 2):
                    calls[f"free {-(-blocks // each)} chunks"] = [attend_in_chunks(call, each) for call in exact]
            num_bytes = rows * length * 584 + 4 * rows * HEADS * DIM
            yield Case(f"attention B{rows} L{length}", calls, num_bytes, 4 * rows * HEADS * DIM * length)


FAMILIES: dict[str, Callable[[], Iterator[Case]]] = {
    "bf16": bf16_cases,
    "fp8": fp8_cases,
    "fp4": expert_cases,
    "attention": attention_cases,
    "index": index_cases,
    "boundary": boundary_cases,
    "compress": compressor_cases,
}
"""Everything on the serving path that adds, by the first word of its cases."""


def cases() -> Iterator[Case]:
    """All, or those of the family that `--only` begins with."""
    named = [family for name, family in FAMILIES.items() if _only().startswith(name)]
    for family in named or FAMILIES.values():
        yield from family()


def _only() -> str:
    return sys.argv[sys.argv.index("--only") + 1] if "--only" in sys.argv else ""


def shown(measured: list[Measurement]) -> list[str]:
    """One line: exact, the best free form, percent."""
    exact = [one for one in measured if one.implementation.startswith("exact")]
    free = min((one for one in measured if one.implementation.startswith("free")), key=lambda one: one.us)
    slowest = max(exact, key=lambda one: one.us) if len(exact) > 1 else exact[0]
    cost, most = (100 * (one.us / free.us - 1) for one in (exact[0], slowest))
    other = "" if slowest is exact[0] else f" ({slowest.implementation}: {slowest.us:.1f} us, {most:+.1f} %)"
    name = f"{exact[0].case:<30} {exact[0].us:9.1f} us   {free.implementation:<24} {free.us:9.1f} us"
    return [f"{name}   {cost:+6.1f} %{other}"]


def check() -> None:
    """Compares first results; exits with 1 if any free form computes something else."""
    torch.manual_seed(0)
    far = 0
    with torch.inference_mode():
        for case in cases():
            if _only() not in case.name:
                continue
            exact, *rest = ((name, calls[0]()) for name, calls in case.implementations.items())
            for name, result in rest:
                if not isinstance(result, Tensor) or not isinstance(exact[1], Tensor) or "only" in name:
                    continue
                one, other = (each.float().nan_to_num(posinf=0, neginf=0) for each in (exact[1], result))
                distance = float((one - other.view_as(one)).norm() / one.norm())
                if not distance <= TOLERANCE:
                    far += 1
                    print(f"{case.name}: {name} is {distance:.2g} from the exact form", flush=True)
    print("free forms compute the same" if not far else f"{far} free forms are wrong")
    sys.exit(bool(far))


if __name__ == "__main__":
    if "--check" in sys.argv:
        check()
    main("exactness_cost", cases, shown)
