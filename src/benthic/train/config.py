"""What a training run is: read from a recipe (TOML), validated here, frozen."""

from dataclasses import dataclass, field
from typing import Literal

from benthic.errors import ConfigError
from benthic.models.context import LatentForm
from benthic.train.adamw import AdamWConfig
from benthic.train.balance import BalanceConfig
from benthic.train.dropping import DroppingConfig
from benthic.train.losses import LossConfig
from benthic.train.muon import MuonConfig
from benthic.train.packing import Layout, Oversize
from benthic.train.schedule import ScheduleConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StageConfig:
    """A part of a run with its own documents and shapes; stages follow one another in the order of the recipe."""

    mixture: str
    """Name of the mixture of documents, known to whoever makes them."""
    tokens: int
    """Rows to train on, filler included; rounded to whole steps, at least one."""
    rows: int = 65536
    """Rows of a batch."""
    batches_per_step: int = 1
    """Batches whose gradients are added before the weights move."""
    max_blocks: int = 0
    """Blocks of 64 positions in a batch at most; bounds what a captured step computes. 0: one for every 16 rows."""
    max_len: int = 640
    """Tokens in a document at most."""
    oversize: Oversize = "error"
    """What to do with a longer document: "error", or "split" it into several."""
    dense_selection: bool = True
    """Attend all compressed entries instead of the indexer's choice (the indexer's warm-up)."""
    compile: bool = False
    """Run layers compiled (CUDA): worth its minutes where a stage has thousands of steps of one shape."""
    seed: int = 0
    """Added to the run's seed."""

    def __post_init__(self) -> None:
        for name in ("tokens", "rows", "batches_per_step"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} ({value}) must be at least 1")
        if self.oversize not in ("error", "split"):
            raise ConfigError(f'oversize ("{self.oversize}") must be "error" or "split"')
        self.layout(0)

    def layout(self, mtp_depth: int) -> Layout:
        """The shape of the stage's batches."""
        blocks = self.max_blocks or -(-self.rows // 16) + 1
        return Layout(self.rows, blocks, self.max_len, mtp_depth, self.oversize)

    @property
    def tokens_per_step(self) -> int:
        """Rows of all batches of a step."""
        return self.rows * self.batches_per_step

    @property
    def num_steps(self) -> int:
        """Optimiser steps of the stage."""
        return max(1, round(self.tokens / self.tokens_per_step))


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveConfig:
    """What a run leaves on disk."""

    every_steps: int = 500
    """Steps between resumable checkpoints; one is also written at the end."""
    keep: int = 2
    """Resumable checkpoints to keep; older ones are removed once a newer one is complete."""
    with_weights: bool = True
    """Also put the weights in official format beside each resumable checkpoint."""

    def __post_init__(self) -> None:
        if self.every_steps < 1 or self.keep < 1:
            raise ConfigError(f"save.every_steps ({self.every_steps}) and save.keep ({self.keep}) must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """A whole run."""

    model: str
    """Name or directory of the model whose config.json gives the sizes."""
    output: str
    """Directory of the run: metrics, checkpoints, the final model. A run found there is continued."""
    stages: dict[str, StageConfig]
    """What is trained on, by name, in order."""
    init_from: str = ""
    """Checkpoint to start from; empty starts from random weights."""
    seed: int = 0
    """Of initial weights and data."""
    device: str = "auto"
    """A torch device; "auto" takes CUDA where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Activations; "auto" is bfloat16 on CUDA, float32 on CPU. Weights are always float32."""
    numerics: Literal["plain", "quantized"] = "plain"
    """Whether activations are rounded on the way as the released models' were."""
    latent_form: LatentForm = "absorbed"
    """How latent attention (V2, V3) is computed: "absorbed" gives the bits of serving, so that RL can compare the two;
    "expanded" takes fewer operations in attention, for pre-training."""
    num_workers: int = 0
    """Processes that make batches; 0 makes them in the training process."""
    clip_norm: float = 1.0
    """Joint norm that gradients are scaled down to."""
    qat_share: float = 0.1
    """Share of all steps, at the end, whose forward pass sees weights rounded as in the official file."""
    log_every: int = 20
    """Steps between reading metrics back from the device."""
    evaluate_every: int = 0
    """Steps between evaluations; 0 evaluates at the end only."""
    tf32: bool = False
    """Let float32 products on CUDA round their inputs to 10 bits of mantissa."""
    cuda_graph: bool = False
    """Capture the step once a stage and replay it (CUDA): the host no longer bounds the speed."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    muon: MuonConfig = field(default_factory=MuonConfig)
    adamw: AdamWConfig = field(default_factory=AdamWConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    dropping: DroppingConfig = field(default_factory=DroppingConfig)
    save: SaveConfig = field(default_factory=SaveConfig)

    def __post_init__(self) -> None:
        if not self.stages:
            raise ConfigError("stages is empty; a run needs at least one stage")
        if not 0 <= self.qat_share <= 1:
            raise ConfigError(f"qat_share ({self.qat_share}) must lie between 0 and 1")
        if self.latent_form not in ("absorbed", "expanded"):
            raise ConfigError(f'latent_form ("{self.latent_form}") must be "absorbed" or "expanded"')
        if self.clip_norm <= 0:
            raise ConfigError(f"clip_norm ({self.clip_norm}) must be positive")
        if self.log_every < 1 or self.evaluate_every < 0 or self.num_workers < 0:
            raise ConfigError(
                f"log_every ({self.log_every}) must be at least 1, evaluate_every ({self.evaluate_every}) and "
                f"num_workers ({self.num_workers}) at least 0"
            )

    @property
    def total_steps(self) -> int:
        """Optimiser steps of all stages."""
        return sum(stage.num_steps for stage in self.stages.values())

    @property
    def first_qat_step(self) -> int:
        """The first step whose forward pass sees rounded weights."""
        return self.total_steps - round(self.qat_share * self.total_steps)
