"""A run that is killed and started again ends with the same bits, whoever makes its batches."""

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from benthic.errors import CheckpointError
from benthic.train.checkpoint import latest_snapshot, load_snapshot, restore, save_snapshot
from benthic.train.metrics import read_metrics

PROGRAM = Path(__file__).with_name("small_run.py")


def start(output: Path, num_workers: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(PROGRAM), str(output), str(num_workers)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def kill_after_step(output: Path, step: int) -> None:
    """Starts a run and kills it, without warning, once its metrics show that step."""
    process = start(output)
    log = output / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (log.exists() and len(read_metrics(log)) > step):
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def metrics_without_speed(output: Path) -> list[dict[str, object]]:
    lines = read_metrics(output / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name != "tokens_per_s"} for line in lines]


def test_a_killed_run_goes_on_and_ends_with_the_bits_of_an_unbroken_one(tmp_path):
    """Killed in its second stage, a step after a checkpoint; continued by other processes making the batches."""
    small_run = runpy.run_path(str(PROGRAM), run_name="small_run")
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    small_run["small_trainer"](small_run["small_config"](str(unbroken))).run()
    kill_after_step(broken, 8)
    assert latest_snapshot(broken) is not None
    assert start(broken, num_workers=1).wait(timeout=240) == 0
    expected, resumed = (load_snapshot(latest_snapshot(output)).tensors for output in (unbroken, broken))
    assert resumed.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(tensor, resumed[name])] == []
    assert metrics_without_speed(broken) == metrics_without_speed(unbroken)


def test_only_complete_checkpoints_are_found_and_old_ones_go(tmp_path):
    for step in (1, 2, 3):
        save_snapshot(tmp_path, step, {"w": torch.full((2,), float(step))}, {}, keep=2)
    (tmp_path / "checkpoints" / "writing-1").mkdir()
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == ["step-00000002", "step-00000003"]
    snapshot = load_snapshot(latest_snapshot(tmp_path))
    assert (snapshot.step, snapshot.tensors["w"].tolist()) == (3, [3.0, 3.0])


def test_the_random_state_comes_back(tmp_path):
    save_snapshot(tmp_path, 1, {}, {}, keep=1)
    expected = torch.rand(3)
    load_snapshot(latest_snapshot(tmp_path))
    assert torch.equal(torch.rand(3), expected)


def test_restoring_names_all_faults_and_touches_nothing(tmp_path):
    save_snapshot(tmp_path, 1, {"a": torch.ones(2), "b": torch.ones(3), "old": torch.ones(1)}, {}, keep=1)
    snapshot = load_snapshot(latest_snapshot(tmp_path))
    targets = {"a": torch.zeros(2), "b": torch.zeros(4), "new": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=r"missing new; unexpected old; b has shape \(3,\), not \(4,\)"):
        restore(targets, snapshot)
    assert targets["a"].tolist() == [0.0, 0.0]


def test_a_torn_checkpoint_is_named(tmp_path):
    path = save_snapshot(tmp_path, 1, {"a": torch.ones(200)}, {}, keep=1)
    data = (path / "training.safetensors").read_bytes()
    (path / "training.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="step-00000001 cannot be read .* start anew: there is no older one"):
        load_snapshot(path)


def test_a_torn_checkpoint_names_the_newest_older_one_that_is_whole(tmp_path):
    paths = [save_snapshot(tmp_path, step, {"a": torch.ones(200)}, {}, keep=4) for step in (1, 2, 3)]
    for path in paths[1:]:
        data = (path / "training.safetensors").read_bytes()
        (path / "training.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="step-00000003 cannot be read .*; remove it to go back to step-00000001"):
        load_snapshot(paths[2])


def test_equal_runs_write_equal_checkpoint_files_whatever_was_drawn_before(tmp_path):
    small_run = runpy.run_path(str(PROGRAM), run_name="small_run")
    files = []
    for draws in (1, 5):
        torch.rand(draws)
        config = small_run["small_config"](str(tmp_path / str(draws)))
        small_run["small_trainer"](config).run()
        files.append((latest_snapshot(tmp_path / str(draws)) / "training.safetensors").read_bytes())
    assert files[0] == files[1]
