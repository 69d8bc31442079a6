"""`benthic plan` from end to end: tables, JSON, figures, and mistakes in three parts."""

import json
import re
from pathlib import Path

import pytest

from benthic.cli.command import run
from benthic.cli.plan import read_lengths
from benthic.plan import Choices, formats_for, parse_machine, plan, record, report, subject
from benthic.plan.figure import panels, spread


def test_the_three_boxes_what_binds_and_what_to_change_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "deepseek-v4-flash", "--context", "128K", "--compare", "deepseek-v3.2"]) == 0
    text = capsys.readouterr().out
    for mark in ("1  WEIGHTS HELD", "2  COMPUTATION", "3  CONVERSATION STATE", "ON h200x8", "BESIDE deepseek-v3.2"):
        assert mark in text
    for choice in ("fp8 weights", "bf16 cache", "draft mtp", "4 devices", "16 devices", "contexts of 32K"):
        assert re.search(rf"^    {choice} +\S", text, re.MULTILINE), choice
    assert "computation binds, in bytes of weights" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v2-lite", "deepseek-v3.2", "deepseek-v4-pro", "tiny"])
def test_every_family_and_a_folder_can_be_planned(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", name, "--hardware", "h200x8,b200", "--hardware", "h20x16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [machine["name"] for machine in found["machines"]] == ["h200x8", "b200x1", "h20x16"]
    assert found["weights"]["bytes"] == sum(part["num_bytes"] for part in found["weights"]["parts"])
    for context in found["choices"]["contexts"]:
        works = found["computation"][str(context)]["decode"]
        assert works["flops"] == pytest.approx(sum(part["flops"] for part in works["parts"]))


def test_json_and_text_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    model = subject("deepseek-v3")
    choices = Choices(
        machines=(parse_machine("h200x8"),), contexts=(32768,), formats=formats_for(model, "official", None, "none")
    )
    found = plan(model, choices, ("deepseek-67b",))
    data, text = record(found), report(found)
    assert data["machines"][0]["contexts"][0]["words"].split(":")[0] in " ".join(text.split())
    assert f"{data['state']['token_bytes']:,.1f} B" in text
    assert all(" ".join(note.split()) in " ".join(text.split()) for note in data["notes"])


def test_v2_beside_67b_says_93_3_percent(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "deepseek-v2", "--compare", "deepseek-67b"]) == 0
    assert "93.3 % less" in capsys.readouterr().out


MISTAKES = {
    "nearly a model": (["deepseek-v4-flsh"], r"there is no folder .* did you mean 'deepseek-v4-flash'\? known: "),
    "facts only": (["deepseek-67b"], r"only published facts are known; it may stand behind --compare"),
    "hardware": (["tiny", "--hardware", "h300x8"], r"the hardware is 'h300x8'; it must be a device and how many"),
    "context": (["tiny", "--context", "many"], r"the context is 'many'; it must be a number of tokens"),
    "long context": (["tiny", "--context", "999M"], r"the context is 1047527424 tokens; it must be 1 to 16,777,216"),
    "concurrency": (["tiny", "--concurrency", "0"], r"the concurrency is 0; it must be at least 1"),
    "weights": (["tiny", "--dtype", "int3"], r"the weights' format is 'int3'; it must be one of official, fp8"),
    "cache": (["tiny", "--cache", "int3"], r"the cache format is 'int3'; it must be one of official, bf16, fp32"),
    "no such cache": (["deepseek-v3", "--cache", "official"], r"model a deepseek_v3, which has none; it must be bf16"),
    "draft": (["tiny", "--draft", "ngram"], r"the draft is 'ngram'; it must be one of none, mtp"),
    "no MTP": (["deepseek-v2", "--draft", "mtp"], r"deepseek-v2 has no MTP block; it must be none"),
    "ceilings": (["tiny", "--ceilings", "guessed"], r"the ceilings are 'guessed'; they must be measured or datasheet"),
    "comparison": (["tiny", "--compare", "gpt"], r"there is no folder 'gpt' and no model of that name"),
    "figure": (["tiny", "--plot", "x.gif"], r"the plot's file is 'x\.gif'; its name must end in \.svg"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_in_three_parts(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = MISTAKES[case]
    assert run(["plan", *words]) == 2
    shown = capsys.readouterr().err
    assert re.search(message, shown), shown
    assert len(shown.splitlines()) == 1


def test_an_empty_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", ""]) == 2
    assert "the model's name is empty; it must be" in capsys.readouterr().err


def test_lengths_take_k_and_m() -> None:
    assert read_lengths("4096, 128K,1m") == [4096, 131072, 1048576]


def test_three_devices_are_planned_with_one_idle(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "deepseek-v4-flash", "--hardware", "h200x2,h200x3", "--context", "32K", "--json"]) == 0
    two, three = json.loads(capsys.readouterr().out)["machines"]
    [before], [after] = two["contexts"], three["contexts"]
    assert after["best"]["name"] == before["best"]["name"] + " x1, 1 idle" == "TP2 x1, 1 idle"
    assert "EP2 x1, 1 idle" in [way["name"] for way in after["ways"]]
    assert after["best"]["num_idle"] == 1
    assert after["conversations"] == before["conversations"] > 0
    assert after["decode"] == before["decode"]


def test_a_context_that_is_given_twice_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "tiny", "--context", "4096,4K", "--context", "512,4096"]) == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"^  at 4K: ", text, re.MULTILINE)) == 1
    assert re.search(r"GFLOP of one token +format +at 4K +at 512 +0-4K +0-512$", text, re.MULTILINE)


def test_a_context_beyond_the_model_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "deepseek-v3", "--context", "128K,256K,1M"]) == 0
    noted = "deepseek-v3 was made for 163,840 tokens, and the context is 262,144, 1,048,576: figures beyond"
    assert noted in " ".join(capsys.readouterr().out.split())
    assert run(["plan", "deepseek-v3", "--context", "160K"]) == 0
    assert "was made for" not in capsys.readouterr().out


def test_a_draft_pays_beyond_the_share_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "deepseek-v4-flash", "--context", "32K", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["machines"][0]
    [change] = [change for change in plain["changes"] if change["choice"] == "draft mtp"]
    ratio = change["decode"]["floor_s"] / plain["contexts"][-1]["decode"]["floor_s"]
    assert f"pays once more than {ratio - 1:.0%} of drafts are accepted" in change["effect"]


def test_the_figure_has_parts_for_one_model_and_lines_for_several() -> None:
    model = subject("deepseek-v4-flash")
    choices = Choices(
        machines=(parse_machine("h200x8"),), contexts=(32768,), formats=formats_for(model, "official", None, "none")
    )
    alone = panels(plan(model, choices))
    for panel in alone:
        whole, *parts = panel.lines
        for place in range(len(whole.contexts)):
            assert sum(line.values[place] for line in parts) == pytest.approx(whole.values[place])
    several = panels(plan(model, choices, ("deepseek-v3.2", "deepseek-67b")))
    for panel in several:
        assert [line.label for line in panel.lines] == ["deepseek-v4-flash", "deepseek-v3.2", "deepseek-67b"]
    assert alone[0].lines[0].contexts[0] == 4096
    assert alone[0].lines[0].contexts[-1] == 1 << 20


def test_labels_are_moved_apart_and_keep_their_order() -> None:
    places = [0.5, 0.51, 0.1, 0.505, 0.99, 0.985]
    moved = spread(places, 0.05, 0.0, 1.0)
    order = sorted(range(len(places)), key=lambda index: places[index])
    gaps = [moved[after] - moved[before] for before, after in zip(order, order[1:], strict=False)]
    assert min(gaps) >= 0.05 - 1e-3
    assert moved[2] == pytest.approx(0.1)
    assert 0.0 <= min(moved) <= max(moved) <= 1.0


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_figure_is_drawn(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan{suffix}"
    assert run(["plan", "deepseek-v4-flash", "--compare", "deepseek-v3.2", "--plot", str(path)]) == 0
    assert path.stat().st_size > 10_000
