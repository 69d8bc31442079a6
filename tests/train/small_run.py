"""A small training run as a program, to be killed: python small_run.py OUTPUT [NUM_WORKERS]."""

import sys
from collections.abc import Iterator
from random import Random

import torch

from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.train import GeneratedSource, Item, StageConfig, TrainConfig, Trainer
from benthic.train.config import SaveConfig
from benthic.train.schedule import ScheduleConfig

MODEL = ModelConfig(
    vocab_size=16,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    head_dim=16,
    qk_rope_head_dim=8,
    q_lora_rank=16,
    o_groups=2,
    o_lora_rank=16,
    sliding_window=16,
    compress_ratios=(0, 4, 0),
    index_n_heads=4,
    index_head_dim=16,
    index_topk=4,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    rope_scaling=None,
    max_position_embeddings=64,
    moe_intermediate_size=32,
    n_routed_experts=4,
    n_shared_experts=1,
    num_experts_per_tok=2,
    routed_scaling_factor=1.5,
    num_hash_layers=1,
    swiglu_limit=10.0,
    hc_mult=2,
    hc_sinkhorn_iters=4,
)


def counting(seed: int) -> Iterator[Item]:
    """Documents that count upwards from anywhere: learnable in a few steps."""
    rng = Random(seed)
    while True:
        start, length = rng.randrange(16), rng.randint(4, 30)
        yield Item([(start + i) % 16 for i in range(length)], [1.0] * length, "count")


def small_config(output: str, **changes: object) -> TrainConfig:
    """Two stages, the second accumulating over two batches; the last third rounded."""
    fields: dict[str, object] = {
        "model": "",
        "output": output,
        "stages": {
            "first": StageConfig(mixture="", tokens=6 * 96, rows=96, max_blocks=24, max_len=32),
            "second": StageConfig(
                mixture="", tokens=6 * 96, rows=48, batches_per_step=2, max_blocks=24, max_len=32,
                dense_selection=False, seed=1,
            ),
        },
        "qat_share": 0.34,
        "log_every": 1,
        "schedule": ScheduleConfig(peak=0.01, warmup_steps=3),
        "save": SaveConfig(every_steps=2, with_weights=False),
    }  # fmt: skip
    return TrainConfig(**{**fields, **changes})  # type: ignore[arg-type]


def small_trainer(config: TrainConfig) -> Trainer:
    """A trainer whose data, weights and order follow from the configuration."""
    torch.set_num_threads(1)
    model = dummy_model(MODEL, config.seed, device="cpu", min_rows=2)
    sources = {
        name: GeneratedSource(counting, stage.layout(1), seed=stage.seed, batches_per_block=2)
        for name, stage in config.stages.items()
    }
    return Trainer(model, sources, config)


if __name__ == "__main__":
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    small_trainer(small_config(sys.argv[1], num_workers=workers)).run()
