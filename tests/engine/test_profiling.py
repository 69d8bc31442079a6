"""Recordings of passes: files that can be opened, that hold the steps asked for, and that change no token."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.profiling import ProfileWish
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.worker import EngineWorker
from benthic.errors import RequestError
from benthic.models.transformer import Transformer
from tests.engine.asking import receive_finals

WAIT_S = 60


def request_of(name: str) -> Request:
    params = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    return Request(request_id=name, prompt_ids=tuple(range(2, 40)), params=params)


def events_of(path: str) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return events


def steps_of(path: str) -> list[str]:
    return [event["name"] for event in events_of(path) if event.get("cat") == "user_annotation"]


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_a_recording_names_its_steps_and_operations_and_changes_no_token(
    small_model: Transformer, tmp_path: Path, overlap_steps: Any
) -> None:
    config = EngineConfig(max_num_seqs=4, cache_bytes=1 << 26, overlap_steps=overlap_steps)
    worker = EngineWorker(Engine(small_model, config))
    worker.start()
    try:
        worker.add(request_of("plain"))
        plain = receive_finals(worker, 1)["plain"].token_ids
        wish = ProfileWish(folder=str(tmp_path / "new" / "folder"), num_steps=500)
        path = worker.start_profile(wish).result(WAIT_S)
        assert not Path(path).exists()
        worker.add(request_of("recorded"))
        assert receive_finals(worker, 1)["recorded"].token_ids == plain
        assert worker.stop_profile().result(WAIT_S) == path
        steps = steps_of(path)
        assert steps[:6] == [f"step {number}" for number in range(1, 7)]
        assert sum(event["name"].startswith("aten::") for event in events_of(path)) > 100
    finally:
        worker.close()


def test_a_recording_ends_by_itself_and_its_trace_can_be_fetched_once(small_model: Transformer, tmp_path: Path) -> None:
    worker = EngineWorker(Engine(small_model, EngineConfig(max_num_seqs=4, cache_bytes=1 << 26)))
    worker.start()
    try:
        with pytest.raises(RequestError, match="no profile is being recorded"):
            worker.stop_profile().result(WAIT_S)
        path = worker.start_profile(ProfileWish(folder=str(tmp_path), num_steps=2)).result(WAIT_S)
        with pytest.raises(RequestError, match="already"):
            worker.start_profile(ProfileWish(folder=str(tmp_path))).result(WAIT_S)
        worker.add(request_of("a"))
        receive_finals(worker, 1)
        assert worker.stop_profile().result(WAIT_S) == path
        assert steps_of(path) == ["step 1", "step 2"]
        with pytest.raises(RequestError, match="start one first"):
            worker.stop_profile().result(WAIT_S)
    finally:
        worker.close()


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_recorded(
    small_model: Transformer, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    worker = EngineWorker(Engine(small_model, EngineConfig(max_num_seqs=4, cache_bytes=1 << 26)))
    worker.start()
    try:
        with pytest.raises(RequestError, match="output_dir .* cannot be made"):
            worker.start_profile(ProfileWish(folder=str(file / "inside"))).result(WAIT_S)
        with pytest.raises(RequestError, match="no profile"):
            worker.stop_profile().result(WAIT_S)
    finally:
        worker.close()
