"""Files that must not load: each is one clear error, and a killed save leaves the old checkpoint."""

import errno
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from benthic.cli.command import run
from benthic.errors import CheckpointError, ConfigError
from benthic.models.checkpoint import convert, inspect, load_model, save_checkpoint
from benthic.models.checkpoint.table import pieces
from tests.checkpoint.sizes import SMALL, random_model, read_all, same_state, write_all


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_checkpoint(random_model(), tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to break."""
    return shutil.copytree(saved, tmp_path / "copy")


def edit_header(path, change):
    """Rewrites a file's header with `change(header)` applied."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    text = change(header)
    text = text if isinstance(text, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def test_one_error_names_every_missing_unexpected_and_misshapen_tensor(folder):
    tensors = read_all(folder)
    del tensors["norm.weight"], tensors["layers.1.attn.wq_a.scale"], tensors["layers.2.ffn.experts.3.w2.weight"]
    tensors["layers.7.attn.attn_sink"] = torch.zeros(4)
    tensors["model.vision.weight"] = torch.zeros(4)
    tensors["layers.0.attn.attn_sink"] = torch.zeros(5)
    tensors["layers.1.ffn.gate.weight"] = tensors["layers.1.ffn.gate.weight"].to(torch.int32)
    tensors["layers.1.ffn.experts.0.w1.scale"] = tensors["layers.1.ffn.experts.0.w1.scale"][:, :1]
    write_all(tensors, folder)
    with pytest.raises(CheckpointError) as caught:
        load_model(folder, device="cpu")
    message = str(caught.value)
    missing, unexpected, misshapen = message.split(". ")[1:4]
    assert missing.startswith("missing 3: ")
    for name in ("norm.weight", "layers.1.attn.wq_a.scale", "layers.2.ffn.experts.3.w2.weight"):
        assert name in missing
    assert "layers.7.attn.attn_sink" in unexpected
    assert "vision.weight" in unexpected
    assert "layers.0.attn.attn_sink has shape [5]; it must be [4]" in misshapen
    assert "layers.1.ffn.gate.weight has dtype I32" in message
    assert "layers.1.ffn.experts.0.w1.scale has shape [32, 1]; it must be [32, 2]" in message


def test_a_converter_refuses_as_the_loader_does_and_writes_nothing(folder, tmp_path):
    """B130: a tensor that is missing or unknown stops a conversion."""
    tensors = read_all(folder)
    del tensors["layers.1.attn.indexer.wq_b.weight"]
    write_all(tensors, folder)
    with pytest.raises(CheckpointError, match=r"layers\.1\.attn\.indexer\.wq_b\.weight"):
        convert(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_half_an_mtp_block_is_missing_tensors(folder):
    tensors = {name: t for name, t in read_all(folder).items() if not name.startswith("mtp.0.attn.")}
    write_all(tensors, folder)
    with pytest.raises(CheckpointError, match=r"missing 8: mtp\.0\.attn\.wq_a\.weight"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("keep", [0, 4, 8, 100, -1])
def test_a_truncated_file_is_named(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*cut short"):
        load_model(folder, device="cpu")


BROKEN_HEADERS = {
    "not json": (lambda h: b"{ nonsense", "not JSON"),
    "a list": (lambda h: b"[1, 2, 3]", "must be a JSON object"),
    "not text": (lambda h: b"\xff\xfe\xfd", "not JSON"),
    "a hole": (lambda h: h["norm.weight"].update(data_offsets=[0, 128]), "starts at byte|the tensor before it ends"),
    "wrong size": (lambda h: h["norm.weight"].update(shape=[63]), "norm.weight has 128 bytes of data"),
    "negative": (lambda h: h["norm.weight"].update(shape=[-64]), "dtype, shape and data_offsets are needed"),
    "unknown dtype": (lambda h: h["norm.weight"].update(dtype="Q4"), "'Q4'; known are"),
    "no offsets": (lambda h: h["norm.weight"].pop("data_offsets"), "dtype, shape and data_offsets are needed"),
    "a lost tensor": (lambda h: h.pop("norm.weight") and None, "the tensor before it ends at"),
}


@pytest.mark.parametrize("case", BROKEN_HEADERS)
def test_a_wrong_header_is_explained(folder, case):
    change, reason = BROKEN_HEADERS[case]
    edit_header(folder / "model.safetensors", change)
    with pytest.raises(CheckpointError, match=reason):
        load_model(folder, device="cpu")


def test_a_name_twice_in_one_header_is_refused(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    text = b'{"norm.weight":{"dtype":"BF16","shape":[64],"data_offsets":[0,128]},' + data[9 : 8 + length]
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(CheckpointError, match=r"norm\.weight twice"):
        load_model(folder, device="cpu")


@pytest.fixture
def sharded(tmp_path):
    return save_checkpoint(random_model(), tmp_path / "sharded", max_shard_bytes=100_000)


def test_absent_shards_are_all_named(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    shards[0].unlink()
    shards[2].unlink()
    with pytest.raises(CheckpointError, match=rf"2 absent files: {shards[0].name}, {shards[2].name}"):
        load_model(sharded, device="cpu")


def test_a_tensor_in_two_shards_is_refused(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    shutil.copyfile(shards[0], sharded / "model-extra.safetensors")
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"embed\.weight is there twice"):
        load_model(sharded, device="cpu")


def test_an_index_that_puts_a_tensor_into_the_wrong_shard_is_refused(sharded):
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    wrong = next(name for name in index["weight_map"].values() if name != index["weight_map"]["embed.weight"])
    index["weight_map"]["embed.weight"] = wrong
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=rf"promises embed\.weight in {wrong}, which does not hold it"):
        load_model(sharded, device="cpu")


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../secret.safetensors"}}'])
def test_a_broken_index_is_refused(sharded, content):
    (sharded / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match="index.json"):
        load_model(sharded, device="cpu")


def test_pickles_are_never_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL.to_json()))
    torch.save({"norm.weight": torch.zeros(64)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin, which may run code.*safetensors files only"):
        load_model(tmp_path, device="cpu")


def test_nothing_there_is_said_plainly(tmp_path):
    with pytest.raises(CheckpointError, match="there is no folder.*nothing is downloaded"):
        load_model("deepseek-ai/DeepSeek-V9")
    with pytest.raises(ConfigError, match=r"there is no .*config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(SMALL.to_json()))
    with pytest.raises(CheckpointError, match="holds no weights"):
        load_model(tmp_path)


def test_exponent_bytes_stored_as_numbers_are_noticed(folder):
    """B125: scales whose exponent byte was taken for a number are refused, not loaded."""
    tensors = read_all(folder)
    name = "layers.1.attn.wkv.scale"
    tensors[name] = tensors[name].view(torch.uint8).float()
    write_all(tensors, folder)
    with pytest.raises(CheckpointError, match=r"layers\.1\.attn\.wkv\.weight has scales around 2\*\*7"):
        load_model(folder, device="cpu")


def test_a_scale_that_is_no_number_is_noticed(folder):
    tensors = read_all(folder)
    scale = tensors["layers.1.ffn.experts.2.w1.scale"].view(torch.uint8)
    scale[3, 1] = 255
    write_all(tensors, folder)
    with pytest.raises(CheckpointError, match=r"experts\.2\.w1\.weight has 1 scales that are no number"):
        load_model(folder, device="cpu")


def test_expert_ids_out_of_range_are_noticed(folder):
    tensors = read_all(folder)
    tensors["layers.0.ffn.gate.tid2eid"][5, 1] = 4
    write_all(tensors, folder)
    with pytest.raises(CheckpointError, match=r"tid2eid names experts 0 \.\. 4; the layer has 0 \.\. 3"):
        load_model(folder, device="cpu")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 60_000), junk=st.binary(max_size=12), at=st.integers(0, 50_000))
def test_damage_is_a_checkpoint_error_or_leaves_the_header_alone(saved, cut, junk, at, tmp_path_factory):
    """Random bytes in the header, random cuts: never another exception, never a model from a cut file."""
    data = bytearray((saved / "model.safetensors").read_bytes())
    length = 8 + int.from_bytes(data[:8], "little")
    at %= length
    data[at : at + len(junk)] = junk
    data = data[: len(data) - cut]
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "model.safetensors").write_bytes(data)
    (folder / "config.json").write_bytes((saved / "config.json").read_bytes())
    try:
        model = load_model(folder, device="cpu")
    except CheckpointError:
        return
    assert cut == 0
    assert same_state(model, load_model(saved, device="cpu"))


def test_saving_into_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match=r"holds other files and no config\.json"):
        save_checkpoint(random_model(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_replacing_a_checkpoint_keeps_its_tokenizer_and_drops_its_old_shards(sharded):
    (sharded / "tokenizer.json").write_text("{}")
    model = random_model(seed=5)
    save_checkpoint(model, sharded, weights="fp32")
    assert sorted(path.name for path in sharded.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert same_state(load_model(sharded, device="cpu"), model)
    assert [path.name for path in sharded.parent.iterdir()] == ["sharded"]


def test_companion_files_are_copied(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    folder = save_checkpoint(random_model(), tmp_path / "x", companions=[tmp_path / "tokenizer.json"])
    assert (folder / "tokenizer.json").read_text() == "{}"


def test_a_failing_save_leaves_the_old_checkpoint_and_no_rubbish(tmp_path, monkeypatch):
    model = random_model()
    folder = save_checkpoint(model, tmp_path / "x", weights="fp32")
    before = (folder / "model.safetensors").read_bytes()
    other = random_model(seed=9)
    del other.layers[2].ffn.experts.w2
    with pytest.raises(KeyError):
        save_checkpoint(other, folder, weights="fp32")
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("exchange", ["as the system has it", "without"])
def test_a_checkpoint_is_replaced_whole_with_or_without_an_exchange_of_names(exchange, tmp_path, monkeypatch):
    if exchange == "without":
        monkeypatch.setattr("benthic.models.checkpoint.write._exchange", lambda one, other: False)
    folder = save_checkpoint(random_model(seed=1), tmp_path / "x")
    save_checkpoint(random_model(seed=2), folder, weights="fp32")
    assert same_state(load_model(folder, device="cpu"), random_model(seed=2))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_what_the_system_refuses_is_a_checkpoint_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be made"):
        save_checkpoint(random_model(), tmp_path / "file" / "x")
    with pytest.raises(CheckpointError, match="is a file; a checkpoint is a folder"):
        save_checkpoint(random_model(), tmp_path / "file")

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwrite", full)
    with pytest.raises(CheckpointError, match="No space left on device.*what was there is unchanged"):
        save_checkpoint(random_model(), tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


KILLED = """
import sys, torch
torch.set_num_threads(1)
from tests.checkpoint.sizes import random_model
from benthic.models.checkpoint import save_checkpoint
one, other = random_model(seed=1), random_model(seed=2)
print("ready", flush=True)
while True:
    save_checkpoint(one, sys.argv[1], weights="fp32")
    save_checkpoint(other, sys.argv[1], weights="fp32")
"""


def test_kill_during_save_leaves_a_whole_checkpoint(tmp_path):
    folder = save_checkpoint(random_model(seed=1), tmp_path / "x", weights="fp32")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout.readline() == "ready\n"
    models = [random_model(seed=1), random_model(seed=2)]
    for _ in range(15):
        # Stopped between any two of its steps, the saver must have left one model or the other.
        os.kill(process.pid, signal.SIGSTOP)
        found = load_model(folder, device="cpu")
        assert any(same_state(found, model) for model in models)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.013)
    process.kill()
    process.wait()
    process.stdout.close()
    found = load_model(folder, device="cpu")
    assert any(same_state(found, model) for model in models)


@pytest.mark.parametrize("fault", ["missing", "misshapen", "unexpected"])
def test_inspecting_reports_what_loading_refuses(fault, tmp_path, capsys):
    folder = save_checkpoint(random_model(), tmp_path / "x", weights="fp32")
    tensors = read_all(folder)
    if fault == "missing":
        del tensors["norm.weight"]
    elif fault == "misshapen":
        tensors["norm.weight"] = tensors["norm.weight"][:3].clone()
    else:
        tensors["layers.7.attn.attn_sink"] = torch.zeros(4)
    write_all(tensors, folder)
    with pytest.raises(CheckpointError, match=f"{fault} 1: "):
        load_model(folder, device="cpu")
    found = inspect(folder)
    named = {"missing": found.missing, "unexpected": found.unknown, "misshapen": tuple(found.misshapen)}
    culprit = "layers.7.attn.attn_sink" if fault == "unexpected" else "norm.weight"
    assert named == {**dict.fromkeys(named, ()), fault: (culprit,)} and not found.is_whole
    assert run(["inspect", str(folder)]) == 1
    assert culprit in capsys.readouterr().out


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
def test_files_that_are_only_carried_along_are_never_read(name, tmp_path):
    folder = save_checkpoint(random_model(), tmp_path / "x")
    (folder / name).write_text("{ no JSON", encoding="utf-8")
    load_model(folder, device="cpu")
    assert (convert(folder, tmp_path / "y") / name).read_text(encoding="utf-8") == "{ no JSON"


def test_inspecting_reports_absent_and_broken_shards(sharded, capsys):
    whole = inspect(sharded)
    assert whole.is_whole
    shards = sorted(sharded.glob("*.safetensors"))
    lost = {name for path in shards[:2] for name in load_file(path) if not name.endswith(".scale")}
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-1])
    found = inspect(sharded)
    assert set(found.missing) == lost and not found.unknown and not found.misshapen
    absent, cut = found.unusable
    assert f"1 absent files: {shards[0].name}" in absent and shards[1].name in cut
    # What the model is follows from config.json, whatever is there of it.
    assert (found.parameters, found.parts) == (whole.parameters, whole.parts)
    assert found.num_bytes == sum(t.nbytes for path in shards[2:] for t in load_file(path).values())
    assert run(["inspect", str(sharded)]) == 1
    printed = capsys.readouterr().out
    assert shards[0].name in printed and shards[1].name in printed and f"missing {len(lost)} " in printed


def test_inspecting_a_folder_without_weights_reports_all_of_them_missing(folder, capsys):
    (folder / "model.safetensors").unlink()
    found = inspect(folder)
    assert found.missing == tuple(piece.name for piece in pieces(SMALL)) and found.num_tensors == 0
    assert run(["inspect", str(folder), "--tensors"]) == 1
    capsys.readouterr()
    assert run(["inspect", str(folder), "--json"]) == 1
    assert "holds no weights" in json.loads(capsys.readouterr().out)["unusable"][0]


def test_a_block_in_an_absent_shard_is_missing_and_not_left_out(sharded):
    shards = sorted(sharded.glob("*.safetensors"))
    for path in shards:
        if any(name.startswith("mtp.") for name in load_file(path)):
            path.unlink()
    found = inspect(sharded)
    assert found.mtp_parameters > 0 and any(name.startswith("mtp.") for name in found.missing)
