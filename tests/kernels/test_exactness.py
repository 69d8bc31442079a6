"""The start-up checks: they pass here with the house's remedies and fail without them."""

import os
import subprocess
import sys

import pytest
import torch

from benthic.errors import ExactnessError
from benthic.kernels import exactness
from benthic.kernels.exactness import establish_min_rows
from benthic.kernels.product_rows import fewest_product_rows

SHAPES = [(592, 256), (24, 1024), (16, 256), (256, 128)]


def test_few_rows_suffice_on_this_machine() -> None:
    assert establish_min_rows(SHAPES, torch.get_num_threads()) in exactness.CANDIDATES


def test_another_thread_count_than_torchs_is_refused() -> None:
    with pytest.raises(ExactnessError, match=f"asked for {torch.get_num_threads() + 1} threads"):
        establish_min_rows(SHAPES, torch.get_num_threads() + 1)


def test_products_that_never_agree_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "linear", lambda x, weight: x @ weight.t() + len(x))
    with pytest.raises(ExactnessError, match=r"linear of \d+ rows with a \[16, 256\] weight"):
        establish_min_rows([(16, 256)], torch.get_num_threads())


def test_shapes_of_a_large_model_are_sampled_one_for_each_input_width() -> None:
    shapes = [(100_000, 512), (4096, 512), (2048, 4096)]
    assert {columns for _, columns in exactness._sample(shapes)} == {512, 4096}
    assert all(rows <= exactness.SAMPLED_OUT for rows, _ in exactness._sample(shapes))


@pytest.mark.parametrize("dim", [16, 64])
def test_attention_products_agree_from_few_rows_on(dim: int) -> None:
    assert fewest_product_rows(dim, torch.get_num_threads()) <= 16


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["", "AUTO,STRICT"])
def test_both_modes_of_the_library_and_two_threads_hold(threads: int, mode: str) -> None:
    code = (
        f"import torch; torch.set_num_threads({threads})\n"
        "from benthic.kernels.exactness import establish_min_rows\n"
        f"print(establish_min_rows({SHAPES}, {threads}))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if mode:
        environment["MKL_CBWR"] = mode
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 64
