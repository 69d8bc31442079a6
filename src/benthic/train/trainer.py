"""The training run: a straight line and one loop.

    source -> packed batch -> forward -> losses -> backward -> clip -> Muon and AdamW -> schedule -> metrics
                                                        every so often: evaluation, checkpoint

A run is a function of its configuration: killed at any moment and started again, it goes on from its last checkpoint
and ends, on CPU, with the same bits.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch

from benthic.errors import ConfigError, TrainingError
from benthic.models.checkpoint import save_checkpoint
from benthic.models.transformer import Transformer
from benthic.train.balance import bias_rate
from benthic.train.capture import CapturedStep
from benthic.train.checkpoint import latest_snapshot, load_snapshot, restore, save_snapshot
from benthic.train.config import StageConfig, TrainConfig
from benthic.train.feed import open_feed, to_device
from benthic.train.metrics import MetricsLog
from benthic.train.routing_counts import RoutingCounts, describe_counts
from benthic.train.schedule import learning_rate
from benthic.train.sources import Source
from benthic.train.step import METRICS, StepValues, TrainStep
from benthic.train.stream import open_stream

Evaluate = Callable[[Transformer, int], Mapping[str, float]]
# Leaves that may change when a run is continued: they do not touch what is computed.
_FREE = frozenset({"output", "num_workers", "log_every", "evaluate_every", "save", "cuda_graph"})


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage's place in the run: steps `first_step` up to `last_step`, exclusive."""

    name: str
    config: StageConfig
    first_step: int
    last_step: int


def plan_stages(config: TrainConfig) -> tuple[Stage, ...]:
    """The stages of a run with the steps they take."""
    stages, first = [], 0
    for name, stage in config.stages.items():
        stages.append(Stage(name, stage, first, first + stage.num_steps))
        first += stage.num_steps
    return tuple(stages)


class Trainer:
    """Trains a model in place.

    Args:
        model: fp32 weights, initialised, on its device.
        sources: for each stage, by name, the batches to train on.
        evaluate: called with the model (rounded as in the official file during the last part) and the step.
        report: takes lines for people.
    """

    def __init__(
        self,
        model: Transformer,
        sources: Mapping[str, Source],
        config: TrainConfig,
        evaluate: Evaluate | None = None,
        report: Callable[[str], None] = print,
    ) -> None:
        missing = sorted(set(config.stages) - set(sources))
        if missing:
            raise ConfigError(f"no documents for stages {', '.join(missing)}; sources were given for {sorted(sources)}")
        self._model, self._sources, self._config = model, sources, config
        self._evaluate, self._report = evaluate, report
        self._output = Path(config.output)
        torch.backends.cuda.matmul.allow_tf32 = config.tf32
        if any(stage.compile for stage in config.stages.values()):
            for block in (*model.layers, *model.mtp):
                block.compile(dynamic=False)
        self._step = TrainStep(model, config)
        self._next_step = 0
        self._pending: list[tuple[int, float, StepValues]] = []
        self._last_read = (time.perf_counter(), 0)

    def run(self) -> None:
        """Trains from the run's newest checkpoint, or from the start, to the end; writes the final model."""
        # The state of torch's generator is part of a checkpoint, so that equal runs write equal files only if seeded.
        torch.manual_seed(self._config.seed)
        self._resume()
        metrics = MetricsLog(self._output / "metrics.jsonl", self._next_step)
        routing = MetricsLog(self._output / "routing.jsonl", self._next_step)
        for stage in plan_stages(self._config):
            if self._next_step < stage.last_step:
                self._run_stage(stage, metrics, routing)
        self._save()
        self._write_weights(self._output / "final")
        self._report(f"wrote {self._output / 'final'}")
        metrics.close()
        routing.close()

    def _run_stage(self, stage: Stage, metrics: MetricsLog, routing: MetricsLog) -> None:
        config, model = self._config, self._model
        per_step = stage.config.batches_per_step
        cursor = (self._next_step - stage.first_step) * per_step
        stream = open_stream(self._sources[stage.name], cursor, config.num_workers)
        layout = stage.config.layout(len(model.mtp))
        spared = config.dropping.spared_share if config.dropping.enabled else 0.0
        prepare = partial(to_device, config=model.config, layout=layout, device=model.device, spared_share=spared)
        feed = open_feed(stream, prepare, model.device, per_step)
        self._report(f"stage {stage.name}: steps {self._next_step} to {stage.last_step - 1}")
        try:
            take_step: TrainStep | CapturedStep = self._step
            if config.cuda_graph and model.device.type == "cuda":
                take_step = CapturedStep(self._step)
            self._last_read = (time.perf_counter(), self._next_step)
            # Other shapes of the same layers (evaluation, other stages) must not be compiled too.
            torch.compiler.set_stance("default" if stage.config.compile else "force_eager")
            while self._next_step < stage.last_step:
                step = self._next_step
                rate = learning_rate(config.schedule, step, config.total_steps)
                values = take_step(
                    [feed.next() for _ in range(per_step)],
                    learning_rate=rate,
                    balance_rate=bias_rate(config.balance, step, config.total_steps),
                    dense_selection=stage.config.dense_selection,
                    rounded=step >= config.first_qat_step,
                )
                self._next_step += 1
                self._pending.append((step, rate, values))
                self._between_steps(stage, metrics, routing)
        finally:
            feed.close()
            stream.close()

    def _between_steps(self, stage: Stage, metrics: MetricsLog, routing: MetricsLog) -> None:
        """What is due after a step: reading metrics, evaluating, saving."""
        done, config = self._next_step, self._config
        is_last = done == config.total_steps
        evaluates = is_last or (config.evaluate_every and done % config.evaluate_every == 0)
        saves = done % config.save.every_steps == 0 and not is_last
        if done % config.log_every == 0 or done == stage.last_step or evaluates or saves:
            self._read_routing(routing)
            self._read_metrics(stage, metrics)
        if evaluates and self._evaluate is not None:
            self._run_evaluation(metrics)
        if saves:
            self._save()

    def _read_routing(self, routing: MetricsLog) -> None:
        """Where rows went in all steps since the last time."""
        counts = reduce(RoutingCounts.plus, (values.counts for _, _, values in self._pending))
        layers = describe_counts(counts, self._step.experts)
        routing.write({"step": self._pending[-1][0], "steps": len(self._pending), "layers": layers})

    def _read_metrics(self, stage: Stage, metrics: MetricsLog) -> None:
        """Reads the values of all steps since the last time; one wait for the device."""
        rows = torch.stack([values.metrics for _, _, values in self._pending]).cpu()
        now, (before, _) = time.perf_counter(), self._last_read
        tokens = len(self._pending) * stage.config.tokens_per_step
        speed = tokens / max(now - before, 1e-9)
        for (step, rate, _), row in zip(self._pending, rows.tolist(), strict=True):
            values = dict(zip(METRICS, row, strict=True))
            metrics.write({"step": step, "stage": stage.name, "learning_rate": rate, **values, "tokens_per_s": speed})
        step, rate, _ = self._pending[-1]
        values = dict(zip(METRICS, rows[-1].tolist(), strict=True))
        text = " ".join(f"{name} {value:.4g}" for name, value in values.items())
        self._report(f"step {step + 1}/{self._config.total_steps} {text} lr {rate:.2e} {speed / 1e3:.1f}K tokens/s")
        self._pending.clear()
        self._last_read = (time.perf_counter(), step)
        bad = (~torch.isfinite(rows)).any(1)
        if bad.any():
            first = step - len(rows) + 1 + int(bad.to(torch.int8).argmax())
            found = dict(zip(METRICS, rows[bad][0].tolist(), strict=True))
            raise TrainingError(
                f"step {first} gave values that are not finite ({found}); "
                "the checkpoints before it are sound: continue from one with a lower learning rate"
            )

    def _run_evaluation(self, metrics: MetricsLog) -> None:
        assert self._evaluate is not None
        step = self._next_step - 1
        is_rounded = step >= self._config.first_qat_step
        self._model.eval()
        with (
            torch.compiler.set_stance("force_eager"),
            self._step.rounding.applied() if is_rounded else nullcontext(),
            torch.no_grad(),
        ):
            results = self._evaluate(self._model, step)
        self._model.train()
        metrics.write({"step": step, **{f"eval.{name}": value for name, value in results.items()}})
        self._report(f"evaluation at step {step + 1}: " + " ".join(f"{k} {v:.4g}" for k, v in results.items()))
        self._last_read = (time.perf_counter(), step)

    def _resume(self) -> None:
        found = latest_snapshot(self._output)
        if found is None:
            return
        snapshot = load_snapshot(found)
        _check_same_run(snapshot.config, self._description(), found)
        restore(self._step.state(), snapshot)
        self._next_step = snapshot.step
        self._report(f"continuing from {found}")

    def _save(self) -> None:
        write = self._write_weights if self._config.save.with_weights else None
        tensors, keep = self._step.state(), self._config.save.keep
        save_snapshot(self._output, self._next_step, tensors, self._description(), keep, write)
        self._last_read = (time.perf_counter(), self._next_step)

    def _write_weights(self, directory: Path) -> None:
        save_checkpoint(self._model, directory)

    def _description(self) -> dict[str, Any]:
        run = dataclasses.asdict(self._config)
        return {"run": {key: run[key] for key in sorted(run) if key not in _FREE}}


def _check_same_run(saved: Mapping[str, Any], current: Mapping[str, Any], where: Path) -> None:
    old, new = _leaves(saved), _leaves(current)
    changed = [
        f"{name}: {old.get(name)} then, {new.get(name)} now"
        for name in sorted(old | new)
        if old.get(name) != new.get(name)
    ]
    if changed:
        raise ConfigError(
            f"{where} was made by a run with other settings ({'; '.join(changed)}); "
            "use the same ones, or choose another output directory"
        )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _leaves(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found
