"""A captured step does what the step does."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benthic.models.checkpoint import dummy_model
from benthic.train.balance import BalanceConfig
from benthic.train.capture import CapturedStep
from benthic.train.config import StageConfig, TrainConfig
from benthic.train.dropping import DroppingConfig
from benthic.train.feed import to_device
from benthic.train.item import Item
from benthic.train.packing import Layout, pack
from benthic.train.step import METRICS, TrainStep

CONFIG = TrainConfig(
    model="", output="", stages={"s": StageConfig(mixture="", tokens=1, rows=600, max_blocks=24, max_len=300)}
)
LAYOUT = Layout(600, 24, 300, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("rounded", [False, True], ids=["plain", "rounded"])
@pytest.mark.parametrize("num_batches", [1, 2])
@pytest.mark.parametrize("drops", [False, True], ids=["whole", "dropping"])
def test_replayed_steps_on_new_batches_give_the_losses_of_plain_steps(config, seed, num_batches, rounded, drops):
    rng = np.random.default_rng(seed)
    config = replace(config, num_attention_heads=4)

    def batch(lengths):
        items = [Item(rng.integers(0, config.vocab_size, n), np.ones(n)) for n in lengths]
        return to_device(pack(items, LAYOUT), config, LAYOUT, torch.device("cuda"))

    steps = [[batch(rng.integers(2, 150, 5).tolist()) for _ in range(num_batches)] for _ in range(4)]
    curves = []
    for captures in (False, True):
        model = dummy_model(config, 1, device="cuda", weight_dtype=torch.float32)
        changes = {"dropping": DroppingConfig(enabled=drops), "balance": BalanceConfig(num_devices=2)}
        step = TrainStep(model, replace(CONFIG, **changes))
        take = CapturedStep(step) if captures else step
        values = [
            take(batches, learning_rate=0.01, balance_rate=0.001, dense_selection=True, rounded=rounded)
            for batches in steps
        ]
        curves.append(torch.stack([value.metrics for value in values]).cpu())
        # Each step has counts of its own, however many replays share one place for them.
        assert all(
            value.counts.rows == sum(b.sequences.is_real.sum() for b in bs)
            for value, bs in zip(values, steps, strict=True)
        )
    assert curves[0].shape == (4, len(METRICS))
    # The losses; bfloat16 products, and gradients added by atomics, are not equal to the bit.
    torch.testing.assert_close(curves[1][:, :3], curves[0][:, :3], rtol=0.03, atol=0.03)
    assert curves[0][-1, 0] != curves[0][0, 0]
    assert (curves[1][:, METRICS.index("dropped")] > 0).any() == drops
