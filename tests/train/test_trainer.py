"""The training line learns, and a run is a function of its configuration."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from benthic.errors import ConfigError, TrainingError
from benthic.models.checkpoint import load_model
from benthic.train.checkpoint import latest_snapshot, load_snapshot
from benthic.train.metrics import read_metrics
from benthic.train.schedule import ScheduleConfig
from benthic.train.trainer import plan_stages


@pytest.fixture(scope="module")
def small_run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("small_run", Path(__file__).with_name("small_run.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_thirty_steps_on_a_cpu_lower_the_loss(small_run, tmp_path):
    config = small_run.small_config(str(tmp_path), qat_share=0.2)
    stage = replace(config.stages["first"], tokens=30 * 96)
    small_run.small_trainer(replace(config, stages={"only": stage})).run()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    losses = [line["next_token"] for line in lines]
    assert len(losses) == 30
    assert losses[-1] < 0.25 * losses[0]
    assert lines[-1]["mtp"] < 0.5 * lines[0]["mtp"]


def test_a_run_leaves_metrics_a_checkpoint_and_a_model_that_loads(small_run, tmp_path):
    seen = []
    config = small_run.small_config(str(tmp_path), evaluate_every=8)
    trainer = small_run.small_trainer(config)
    trainer._evaluate = lambda model, step: seen.append(step) or {"accuracy": 0.5}
    trainer.run()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines if "stage" in line] == list(range(12))
    assert [line["stage"] for line in lines if "stage" in line] == ["first"] * 6 + ["second"] * 6
    assert seen == [7, 11]
    assert [line for line in lines if "eval.accuracy" in line] == [{"step": s, "eval.accuracy": 0.5} for s in seen]
    assert load_snapshot(latest_snapshot(tmp_path)).step == 12
    # The last steps were rounded: the official file holds what the last forward pass would have seen.
    trained = dict(trainer._model.named_parameters())
    loaded = dict(load_model(tmp_path / "final", device="cpu").named_parameters())
    with trainer._step.rounding.applied():
        assert all(torch.equal(loaded[name].data, parameter.data) for name, parameter in trained.items())


def test_a_finished_run_started_again_changes_nothing(small_run, tmp_path):
    config = small_run.small_config(str(tmp_path))
    small_run.small_trainer(config).run()
    before = load_snapshot(latest_snapshot(tmp_path))
    small_run.small_trainer(config).run()
    after = load_snapshot(latest_snapshot(tmp_path))
    assert all(torch.equal(before.tensors[name], after.tensors[name]) for name in before.tensors)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 12


def test_continuing_with_other_settings_names_what_changed(small_run, tmp_path):
    config = small_run.small_config(str(tmp_path))
    small_run.small_trainer(config).run()
    other = replace(config, schedule=ScheduleConfig(peak=0.02, warmup_steps=3))
    with pytest.raises(ConfigError, match=r"run\.schedule\.peak: 0\.01 then, 0\.02 now"):
        small_run.small_trainer(other).run()
    # What does not touch the computation may change.
    small_run.small_trainer(replace(config, log_every=7)).run()


def test_values_that_are_not_finite_end_the_run_and_leave_no_checkpoint_of_them(small_run, tmp_path):
    trainer = small_run.small_trainer(small_run.small_config(str(tmp_path)))
    with torch.no_grad():
        trainer._model.head.weight[0, 0] = float("inf")
    with pytest.raises(TrainingError, match="step 0 gave values that are not finite"):
        trainer.run()
    assert latest_snapshot(tmp_path) is None
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["step"] == 0


def test_stages_follow_one_another_in_whole_steps(small_run):
    stages = plan_stages(small_run.small_config("unused"))
    assert [(stage.name, stage.first_step, stage.last_step) for stage in stages] == [("first", 0, 6), ("second", 6, 12)]


def test_a_stage_without_documents_is_named(small_run, tmp_path):
    config = small_run.small_config(str(tmp_path))
    trainer = small_run.small_trainer(config)
    with pytest.raises(ConfigError, match="no documents for stages second"):
        type(trainer)(trainer._model, {"first": trainer._sources["first"]}, config)
