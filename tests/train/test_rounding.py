"""Quantisation-aware training sees the official file's weights and keeps its own."""

import torch

from benthic.models.checkpoint import load_model, save_checkpoint
from benthic.train.rounding import WeightRounding, official_formats


def rounding_of(model):
    named = dict(model.named_parameters())
    return WeightRounding(named, official_formats(model.config, named))


def test_every_parameter_has_the_format_of_the_official_file(model):
    formats = official_formats(model.config, dict(model.named_parameters()))
    assert formats["layers.1.ffn.experts.w13"] == "fp4"
    assert formats["layers.1.ffn.experts.w2"] == "fp4"
    assert formats["layers.1.attn.wq_a.weight"] == "fp8"
    assert formats["layers.1.attn.compressor.wkv.weight"] == "bf16"
    assert formats["embed.weight"] == "bf16"
    assert formats["hc_head_fn"] == "fp32"
    assert formats.keys() == dict(model.named_parameters()).keys()


def test_rounded_weights_are_those_that_a_saved_checkpoint_loads(model, tmp_path):
    save_checkpoint(model, tmp_path / "saved", progress=False)
    loaded = dict(load_model(tmp_path / "saved").named_parameters())
    with rounding_of(model).applied():
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.data, loaded[name].data, rtol=0, atol=0, msg=name)


def test_masters_come_back_to_the_bit_and_gradients_stay(model):
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    head = model.head.weight
    with rounding_of(model).applied():
        assert not torch.equal(head, before["head.weight"])
        (head * 3).sum().backward()
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())
    assert torch.equal(head.grad, torch.full_like(head, 3.0))
