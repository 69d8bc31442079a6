"""Entries written by fused operations are those of the operations one by one, wherever and however they are stored."""

import random

import pytest

from tests.exactness.passes import differing_rows, mixture, packed, served
from tests.exactness.shapes import SHAPES, model_of
from tests.exactness.test_rows import variant

SETTINGS = [("plain", "wide"), ("quantized", "wide"), ("quantized", "official")]


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if any(shape.config.compress_ratios)])
@pytest.mark.parametrize(("numerics", "storage"), SETTINGS)
def test_rows_are_those_of_whole_sequences(name, numerics, storage):
    kept = model_of(name)
    model = variant(kept, numerics, kept.dtype)
    rng = random.Random(f"{name} {numerics}")
    sequences = [[rng.randrange(2, 512) for _ in range(length)] for length in (301, 64, 5, 130)]
    schedule = mixture(rng, sequences, (1, 1, 3, 70, 128))
    settings = {"page_size": SHAPES[name].page_size, "storage": storage, "in_place": True}
    assert differing_rows(served(model, sequences, schedule, **settings), packed(model, sequences)) == 0
