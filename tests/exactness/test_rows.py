"""Every row's logits are bitwise those of its sequence alone: packed, chunked, mixed, decoded, in any order.

Lengths pass the window, blocks of both ratios and the indexer's top-k. The last tests take a remedy away and must
find a difference: an exactness test that cannot fail proves nothing.
"""

import random
from itertools import product

import pytest
import torch

from benthic.models.checkpoint import empty_model, load_model
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer
from tests.exactness.passes import differing_rows, mixture, packed, served
from tests.exactness.places import Place, options
from tests.exactness.shapes import cases

LENGTHS = (331, 129, 64, 5, 1, 200)
SMALL_STEPS = (1, 1, 1, 2, 3)
ANY_STEPS = (1, 2, 3, 5, 7, 11, 13, 17, 63, 64, 65, 100, 128, 131)


def sequences(seed: int, vocab_size: int = 512) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, vocab_size) for _ in range(length)] for length in LENGTHS]


def variant(model: Transformer, numerics: str, dtype: torch.dtype) -> Transformer:
    other = empty_model(model.config, device=model.device, dtype=dtype, numerics=numerics)
    other.load_state_dict(model.state_dict())
    return other.freeze()


@pytest.mark.parametrize("numerics", ["plain", "quantized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_packed_rows_are_those_of_each_sequence_alone(
    small_model: Transformer, numerics: str, dtype: torch.dtype
) -> None:
    model, ids = variant(small_model, numerics, dtype), sequences(1)
    together = packed(model, ids)
    alone = [packed(model, [one])[0] for one in ids]
    assert differing_rows(together, alone) == 0
    order = random.Random(2).sample(range(len(ids)), len(ids))
    shuffled = packed(model, [ids[i] for i in order])
    assert differing_rows(shuffled, [alone[i] for i in order]) == 0


@pytest.mark.parametrize(
    ("seed", "sizes"), cases(product(range(4), (SMALL_STEPS, ANY_STEPS)), [(0, SMALL_STEPS), (1, ANY_STEPS)])
)
def test_random_mixtures_through_the_cache_give_the_packed_rows(
    small_model: Transformer, seed: int, sizes: tuple[int, ...]
) -> None:
    ids = sequences(seed)
    schedule = mixture(random.Random(seed), ids, sizes)
    assert differing_rows(served(small_model, ids, schedule), packed(small_model, ids)) == 0


@pytest.mark.parametrize("numerics", ["plain", "quantized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_mixtures_are_exact_in_every_dtype_and_policy(
    small_model: Transformer, numerics: str, dtype: torch.dtype
) -> None:
    model, ids = variant(small_model, numerics, dtype), sequences(7)
    schedule = mixture(random.Random(7), ids, ANY_STEPS)
    assert differing_rows(served(model, ids, schedule), packed(model, ids)) == 0


def test_training_weights_and_serving_weights_give_equal_rows(small_model: Transformer) -> None:
    """The trainer's model is not frozen: its weights keep their layout and are tracked by autograd."""
    trained = empty_model(small_model.config, **options())
    trained.load_state_dict(small_model.state_dict())
    trained.train().requires_grad_(True)
    ids = sequences(9)
    rows = build_rows([(i, 0, one) for i, one in enumerate(ids)], trained.min_rows, trained.device)
    logits = trained.logits(trained.hidden(trained(rows, PackedContext(trained.config, rows))))
    assert logits.requires_grad
    assert torch.equal(logits[: rows.num_rows].detach(), torch.cat(packed(small_model, ids)))


def test_a_captured_pass_of_the_trainer_gives_the_rows_of_serving(place: Place, small_model: Transformer) -> None:
    """As a training step is: recorded once, on one stream, and replayed."""
    if place.device == "cpu":
        pytest.skip("nothing is captured on the CPU")
    trained = empty_model(small_model.config, **options())
    trained.load_state_dict(small_model.state_dict())
    trained.train().requires_grad_(True)
    ids = sequences(9)
    rows = build_rows([(i, 0, one) for i, one in enumerate(ids)], trained.min_rows, trained.device)
    context = PackedContext(trained.config, rows)

    def logits() -> torch.Tensor:
        return trained.logits(trained.hidden(trained(rows, context)))

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        logits()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = logits()
    graph.replay()
    assert torch.equal(captured[: rows.num_rows].detach(), torch.cat(packed(small_model, ids)))


def test_the_bundled_model_decodes_a_long_text_as_it_reads_it() -> None:
    model = load_model("tiny", **options()).freeze()
    rng = random.Random(5)
    ids = [[rng.randrange(2, model.config.vocab_size) for _ in range(length)] for length in (700, 90)]
    schedule = [[(0, 0, 512)], *mixture_after(rng, ids, 512)]
    assert differing_rows(served(model, ids, schedule), packed(model, ids)) == 0


def mixture_after(rng: random.Random, ids: list[list[int]], start: int) -> list[list[tuple[int, int, int]]]:
    """A mixture in which the first sequence goes on from `start`."""
    rest = mixture(rng, [ids[0][start:], ids[1]], (1, 1, 1, 4, 30))
    return [[(n, a + start, b + start) if n == 0 else (n, a, b) for n, a, b in step] for step in rest]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40))
def test_many_more_mixtures(small_model: Transformer, seed: int) -> None:
    ids = sequences(100 + seed)
    schedule = mixture(random.Random(seed), ids, (SMALL_STEPS, ANY_STEPS)[seed % 2])
    assert differing_rows(served(small_model, ids, schedule), packed(small_model, ids)) == 0


def test_a_fold_that_splits_by_length_would_be_found(
    cpu_only: None, small_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a tree over as many blocks as there are, so that the longest row decides everyone's order."""
    from benthic.kernels.sparse_attention import op, reference

    def fold_halves(partial: torch.Tensor, dim: int) -> torch.Tensor:
        while partial.shape[dim] > 1:
            half = -(-partial.shape[dim] // 2)
            left, right = partial.split([half, partial.shape[dim] - half], dim)
            left = left.clone()
            left.narrow(dim, 0, right.shape[dim]).add_(right)
            partial = left
        return partial.squeeze(dim)

    monkeypatch.setattr(reference, "fold_blocks", fold_halves)
    monkeypatch.setattr(op, "uses_cpu_kernel", lambda impl, x: False)
    rng = random.Random(3)
    ids = [[rng.randrange(2, 512) for _ in range(length)] for length in (1401, 300)]
    last_rows_together = [[(0, 0, 1400)], [(1, 0, 299)], [(0, 1400, 1401), (1, 299, 300)]]
    alone = [packed(small_model, [one])[0] for one in ids]
    assert differing_rows(served(small_model, ids, last_rows_together), alone) > 0


def test_products_of_bare_rows_would_be_found(
    cpu_only: None, small_model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: products of few rows straight from the library."""
    from benthic.kernels.linear import op

    monkeypatch.setattr(op, "is_by_columns", lambda weight: False)
    monkeypatch.setattr(op, "linear_ref", lambda x, w, dtype: torch.nn.functional.linear(x.float(), w).to(dtype))
    ids = [one[:70] for one in sequences(4)]
    steps = mixture(random.Random(4), ids, (1,))
    if differing_rows(served(small_model, ids, steps), packed(small_model, ids)) == 0:
        pytest.skip("this machine's library multiplies few rows as it does many")
