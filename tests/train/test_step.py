"""One step: accumulation changes nothing, rounding and balance reach what they should."""

from dataclasses import replace

import pytest
import torch

from benthic.train.config import StageConfig, TrainConfig
from benthic.train.feed import to_device
from benthic.train.packing import Layout, pack
from benthic.train.step import METRICS, TrainStep

CONFIG = TrainConfig(
    model="", output="", stages={"s": StageConfig(mixture="", tokens=1, rows=256, max_blocks=16, max_len=256)}
)


def batches_of(model, groups, budget):
    layout = Layout(budget, 16, budget, 1)
    return [to_device(pack(items, layout), model.config, layout, torch.device("cpu")) for items in groups]


def gradients_after(step, batches, **changes):
    arguments = {"learning_rate": 0.0, "balance_rate": 0.0, "dense_selection": True, "rounded": False} | changes
    values = dict(zip(METRICS, step(batches, **arguments).metrics.tolist(), strict=True))
    return values, {name: p.grad.clone() for name, p in step.model.named_parameters()}


def test_cutting_a_step_into_unequal_batches_gives_the_same_gradient(model, documents):
    items = documents([5, 60, 33, 100])
    config = replace(CONFIG, clip_norm=1e9, loss=replace(CONFIG.loss, index_weight=0.0))
    step = TrainStep(model, config)
    whole, gradients = gradients_after(step, batches_of(model, [items], 200))
    parts, accumulated = gradients_after(step, batches_of(model, [items[:1], items[1:]], 200))
    assert parts["next_token"] == pytest.approx(whole["next_token"], rel=1e-5)
    for name, gradient in gradients.items():
        scale = gradient.abs().max().clamp(min=1e-6)
        assert ((accumulated[name] - gradient).abs().max() / scale).item() < 1e-4, name


def test_gradients_are_clipped_to_their_joint_norm(model, documents):
    step = TrainStep(model, replace(CONFIG, clip_norm=0.01))
    values, gradients = gradients_after(step, batches_of(model, [documents([40, 50])], 128))
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt().item()
    assert values["grad_norm"] > 0.01
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_rounded_weights_change_the_loss_and_leave_the_masters(model, documents):
    step = TrainStep(model, CONFIG)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    batches = batches_of(model, [documents([40, 50])], 128)
    plain, _ = gradients_after(step, batches)
    rounded, _ = gradients_after(step, batches, rounded=True)
    assert plain["next_token"] != rounded["next_token"]
    assert plain["next_token"] == pytest.approx(rounded["next_token"], rel=0.05)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_biases_move_by_the_rate_and_fillers_do_not_count(model, documents):
    step, items = TrainStep(model, CONFIG), documents([100])
    gradients_after(step, batches_of(model, [items], 256), balance_rate=0.25)
    biases = {name: b for name, b in model.named_buffers() if name.endswith("gate.bias")}
    assert set(biases) == {"layers.1.ffn.gate.bias", "layers.2.ffn.gate.bias", "mtp.0.ffn.gate.bias"}
    for bias in biases.values():
        assert set(bias.abs().tolist()) <= {0.0, 0.25}
    moved = {name: bias.clone() for name, bias in biases.items()}
    for bias in biases.values():
        bias.zero_()
    # The same document in a batch without filler: the same loads, so the same biases.
    gradients_after(step, batches_of(model, [items], 100), balance_rate=0.25)
    assert all(torch.equal(bias, moved[name]) for name, bias in biases.items())


def test_state_names_every_parameter_buffer_and_optimiser_tensor_once(model):
    step = TrainStep(model, CONFIG)
    state = step.state()
    model_names = {f"model.{name}" for name in model.state_dict()}
    assert model_names <= state.keys()
    for placement in step.optimiser.table:
        prefix = "muon" if placement.optimiser == "muon" else "adamw.mean"
        assert f"{prefix}.{placement.name}" in state
    assert all(tensor.untyped_storage().nbytes() > 0 for tensor in state.values())
