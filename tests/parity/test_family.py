"""Our models equal transformers' DeepSeek-V2, V3 and V3.2."""

import pytest

from tests.parity.family import FAMILIES, ours_of_family, random_family_model, random_family_sizes
from tests.parity.models import packed_logits, random_ids, transformers_logits

LENGTH = 200
TOLERANCE = 5e-5
SEEDS = tuple(range(8))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(family, seed):
    sizes = random_family_sizes(family, seed)
    theirs = random_family_model(sizes, seed)
    ids = random_ids(sizes["vocab_size"], LENGTH, seed)
    expected = transformers_logits(theirs, ids)
    found = packed_logits(ours_of_family(theirs, sizes), ids)
    assert 3 < expected.abs().max() < 8
    assert (found - expected).abs().max() <= TOLERANCE
