"""What the bias is for: on skewed data the load of experts stays near even with it and falls apart without.

Measured by the trainer's own statistics. Two runs of 160 steps on one core: about ten seconds.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import torch

from benthic.models.checkpoint import dummy_model
from benthic.train import GeneratedSource, Item, StageConfig, TrainConfig, Trainer
from benthic.train.balance import BalanceConfig
from benthic.train.config import SaveConfig
from benthic.train.metrics import read_metrics
from benthic.train.schedule import ScheduleConfig
from tests.train import small_run

VOCAB, ROWS, STEPS, WINDOW = 32, 256, 160, 20
MODEL = replace(
    small_run.MODEL,
    vocab_size=VOCAB,
    num_hidden_layers=1,
    compress_ratios=(0,),
    n_routed_experts=8,
    num_hash_layers=0,
    hc_mult=1,
    num_nextn_predict_layers=0,
)


def skewed(seed: int) -> Iterator[Item]:
    """Documents of random tokens whose frequencies follow Zipf's law: a quarter of all is one token."""
    rng = Random(seed)
    frequencies = [1 / (1 + rank) for rank in range(VOCAB)]
    while True:
        ids = rng.choices(range(VOCAB), frequencies, k=rng.randint(20, 60))
        yield Item(ids, [1.0] * len(ids))


def loads_over_mean(output: Path, balance: BalanceConfig) -> tuple[list[float], list[float]]:
    """Max/mean load of experts: of each window of steps, and of each step."""
    torch.set_num_threads(1)
    stage = StageConfig(mixture="", tokens=STEPS * ROWS, rows=ROWS, max_blocks=24, max_len=64)
    config = TrainConfig(
        model="", output=str(output), stages={"only": stage}, qat_share=0.0, log_every=WINDOW, balance=balance,
        schedule=ScheduleConfig(peak=3e-4, warmup_steps=5), save=SaveConfig(every_steps=10**6, with_weights=False),
    )  # fmt: skip
    model = dummy_model(MODEL, 1, device="cpu", min_rows=2)
    source = GeneratedSource(skewed, stage.layout(0), seed=1)
    Trainer(model, {"only": source}, config, report=lambda line: None).run()
    windows = [line["layers"]["0"]["max_over_mean"] for line in read_metrics(output / "routing.jsonl")]
    steps = [line["max_load"] for line in read_metrics(output / "metrics.jsonl")]
    assert len(windows) == STEPS // WINDOW and len(steps) == STEPS
    return windows, steps


def test_the_bias_brings_the_busiest_expert_below_one_and_a_half_means_where_it_stays_above_two_without(
    tmp_path: Path,
) -> None:
    off, off_steps = loads_over_mean(tmp_path / "off", BalanceConfig(update_bias=False, sequence_weight=0.0))
    on, on_steps = loads_over_mean(tmp_path / "on", BalanceConfig(sequence_weight=0.0))
    half = len(off) // 2
    assert min(off[half:]) > 2 and min(off_steps[STEPS // 2 :]) > 2, off
    assert max(on[half:]) < 1.5, on
    # Single steps have few rows, so chance alone makes their busiest expert stand out.
    late = on_steps[3 * STEPS // 4 :]
    assert sum(late) / len(late) < 1.5, late
