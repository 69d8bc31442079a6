"""The commands of benches, as a newcomer types them: each explains itself, and says in words why it cannot measure."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2] / "benchmarks"
PARTS = ("timing", "cuda_timing", "free_")
KERNELS = sorted(path for path in (ROOT / "kernels").glob("*.py") if not path.stem.startswith(PARTS))
MODEL = sorted((ROOT / "model").glob("bench_*.py"))
RESULTS = ROOT / "results"
NEEDS = {"free_products": "triton", "bench_transformers": "transformers", "plot_cuda": "matplotlib"}


@pytest.fixture(params=KERNELS + MODEL, ids=lambda path: path.stem)
def script(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script with the import path that Python gives it: its own folder, and not the repository's root."""
    path: Path = request.param
    pytest.importorskip(NEEDS.get(path.stem, "torch"))
    if "cuda" in path.stem or path.stem == "bench_exactness_cost":
        pytest.importorskip("triton")
    root = ROOT.parent.resolve()
    others = [folder for folder in sys.path if folder not in ("", ".") and Path(folder).resolve() != root]
    monkeypatch.setattr(sys, "path", [str(path.parent), *others])
    for name in [name for name in sys.modules if name.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    return path


def run(script: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    """Ends as the process would: its code, or its last words."""
    monkeypatch.setattr(sys, "argv", [script.name, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return ended.value.code


def test_every_bench_explains_itself(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(script, monkeypatch, "--help") == 0
    assert "usage:" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_a_bench_of_a_gpu_says_that_there_is_none(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if script.stem == "plot_cuda":
        pytest.skip("draws, and measures nothing")
    arguments = ["decode"] if script.stem == "bench_layers" else []
    on_cuda = "cuda" in script.stem or script.stem in ("bench_layers", "bench_transformers", "bench_exactness_cost")
    assert "no GPU: torch" in str(run(script, monkeypatch, *arguments, *([] if on_cuda else ["--device", "cuda"])))


def test_no_rows_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "kernels"))
    assert run(ROOT / "kernels" / "bench_rms_norm.py", monkeypatch, "--rows", "0") == 2
    assert "got 0; it takes whole numbers from 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["h200.jsonl"])
def test_every_stored_measurement_says_how_to_repeat_it(name: str) -> None:
    for text in (RESULTS / name).read_text().splitlines():
        one = json.loads(text)
        assert 0 < one["least_us"] <= one["us"] <= one["most_us"]
        assert set(one["context"]) == {"commit", "device", "torch", "triton", "command"}
        words = one["context"]["command"].split()
        assert words[0] == "python"
        assert (ROOT.parent / words[1]).is_file()
