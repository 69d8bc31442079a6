"""The doctor judges any machine rightly, tells what to do about each fault, and never falls ill itself."""

import json
from pathlib import Path

import pytest

import benthic.doctor
from benthic.cli.command import run
from benthic.doctor import Finding, examine, worst
from benthic.doctor.accelerators import Gpu, judge_absence, judge_gpu, judge_triton
from benthic.doctor.checkpoint import judge_files as judge_model_files
from benthic.doctor.checkpoint import judge_room
from benthic.doctor.examine import checked
from benthic.doctor.libraries import Requirement, check, requirements
from benthic.doctor.machine import (
    GIB,
    judge_disk,
    judge_files,
    judge_memory,
    judge_port,
    judge_processor,
    judge_system,
)

H200 = Gpu("NVIDIA H200", (9, 0), 139 * GIB, 140 * GIB)
CASES = {
    "a good system": (judge_system("linux", (3, 12), "3.12.1"), "ok", ""),
    "an old Python": (judge_system("linux", (3, 10), "3.10.2"), "broken", "Python 3.11"),
    "another system": (judge_system("darwin", (3, 12), "3.12.1"), "broken", "use Linux"),
    "a good processor": (judge_processor("Xeon", {"avx2", "avx512f"}, "x86_64", 8), "ok", ""),
    "no AVX2": (judge_processor("Atom", {"sse4_2"}, "x86_64", 8), "limit", "AVX2"),
    "ARM": (judge_processor("Graviton", {"asimd"}, "aarch64", 8), "ok", ""),
    "one core": (judge_processor("Xeon", {"avx2"}, "x86_64", 1), "limit", "two cores"),
    "enough memory": (judge_memory(16 * GIB), "ok", ""),
    "little memory": (judge_memory(GIB // 2), "limit", "cache_bytes"),
    "a full disk": (judge_disk("temporary files", Path("/tmp"), GIB // 8, True), "limit", "free some"),
    "a closed disk": (judge_disk("temporary files", Path("/tmp"), 9 * GIB, False), "broken", "name another place"),
    "few files": (judge_files(1024), "limit", "ulimit -n"),
    "any number of files": (judge_files(None), "ok", ""),
    "a busy port": (judge_port(8000, False), "limit", "--next-free-port"),
    "no GPU": (judge_absence(False, None, None), "limit", "the CPU serves"),
    "torch without CUDA": (judge_absence(True, None, None), "broken", "torch with CUDA"),
    "hidden GPUs": (judge_absence(True, "13.0", ""), "limit", "unset CUDA_VISIBLE_DEVICES"),
    "an old driver": (judge_absence(True, "13.0", None), "broken", "nvidia-smi"),
    "Hopper": (judge_gpu(0, H200), "ok", ""),
    "Ampere": (judge_gpu(0, H200._replace(capability=(8, 0))), "limit", "Hopper"),
    "Volta": (judge_gpu(0, H200._replace(capability=(7, 0))), "limit", "--device cpu"),
    "a GPU in use": (judge_gpu(0, H200._replace(free_bytes=GIB)), "limit", "another process"),
    "no Triton": (judge_triton(None, "/usr/bin/cc"), "broken", "benthic[gpu]"),
    "no C compiler": (judge_triton("3.6.0", None), "broken", "apt install gcc"),
    "a whole model": (judge_model_files("tiny", True, 921, GIB), "ok", ""),
    "a broken model": (judge_model_files("x", False, 1, GIB), "broken", "`benthic inspect x`"),
    "a model that fits": (judge_room(7_000_000, "cpu", 16 * GIB), "ok", ""),
    "a model that barely fits": (judge_room(GIB, "cpu", 5 * GIB), "limit", "little is left"),
    "a model that does not fit": (judge_room(284 * GIB, "cuda", 139 * GIB), "broken", "weights native"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_machine_is_judged_and_told_what_would_help(case: str) -> None:
    finding, verdict, remedy = CASES[case]
    assert finding.verdict == verdict
    assert remedy in finding.remedy
    assert bool(finding.remedy) == (verdict != "ok")


def test_what_is_not_well_must_come_with_a_remedy() -> None:
    with pytest.raises(AssertionError, match="nobody is told"):
        Finding("x", "limit", "found")


def test_the_worst_verdict_counts() -> None:
    ok, limit, broken = Finding("a", "ok", ""), Finding("b", "limit", "", "do"), Finding("c", "broken", "", "do")
    assert [worst([]), worst([ok]), worst([limit, ok]), worst([ok, broken, limit])] == ["ok", "ok", "limit", "broken"]


def test_libraries_are_those_of_the_project_and_their_age_is_seen() -> None:
    names = {requirement.name for requirement in requirements()}
    assert {"torch", "numba", "deepseek-recipe", "fastapi"} <= names
    assert not names & {"pytest", "mypy"}
    assert check(Requirement("torch", "2.0")).verdict == "ok"
    old = check(Requirement("torch", "99.1"))
    assert (old.verdict, old.remedy) == ("limit", "pip install 'torch>=99.1'")
    assert check(Requirement("no-such-library", "1")).verdict == "broken"


def test_a_check_that_fails_is_a_finding_and_not_the_end() -> None:
    def fails() -> list[Finding]:
        raise OSError("the device fell\noff the bus")

    [finding] = checked("gpu", fails)
    assert (finding.name, finding.verdict) == ("gpu", "broken")
    assert finding.found == "OSError: the device fell off the bus"


def test_this_machine_passes_and_a_model_that_does_not_exist_is_found_out() -> None:
    findings = {finding.name: finding for finding in examine("no-such-model")}
    for name in ("python", "cpu kernels", "exact products"):
        assert findings[name].verdict == "ok", findings[name]
    assert findings["model"].verdict == "broken"
    assert "no-such-model" in findings["model"].found


@pytest.mark.parametrize(("verdict", "code"), [("ok", 0), ("limit", 0), ("broken", 1)])
def test_the_exit_code_says_whether_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verdict: str, code: int
) -> None:
    made = Finding("thing", verdict, "as found", "do this")  # type: ignore[arg-type]
    monkeypatch.setattr(benthic.doctor, "examine", lambda model: [made])
    assert run(["doctor"]) == code
    shown = capsys.readouterr().out
    assert "as found" in shown and "-> do this" in shown
    assert run(["doctor", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict
