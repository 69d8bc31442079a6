"""What a captured step rests on: one shape for all batches of a layout, and no number changed by it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benthic.models.packed import PackedContext
from benthic.models.packed_plan import PackedCapacity, plan_packed
from benthic.models.trace import Trace
from benthic.train.feed import DeviceBatch, to_device
from benthic.train.item import Item
from benthic.train.losses import LossConfig, batch_losses
from benthic.train.packing import Layout, pack

# Rows enough for the longest, and documents of which some leave no compressed entry of either kind.
LAYOUT = Layout(600, 20, 300, 1)
LENGTHS = ([5, 150, 33, 200, 60], [140, 2, 300, 128], [299, 64, 65, 63], [3, 2, 3])


def padded(model, lengths, seed) -> tuple[DeviceBatch, DeviceBatch]:
    """The same batch with a plan as small as it allows, and with one of fixed shapes."""
    rng = np.random.default_rng(seed)
    items = [Item(rng.integers(0, model.config.vocab_size, n), np.ones(n)) for n in lengths]
    batch = to_device(pack(items, LAYOUT), model.config, LAYOUT, torch.device("cpu"))
    capacity = PackedCapacity(LAYOUT.budget, LAYOUT.max_blocks, LAYOUT.max_len)
    plan = plan_packed(model.config, batch.rows.chunks, LAYOUT.budget, capacity=capacity, on_cuda=True)
    return batch, replace(batch, plan=plan)


def losses_and_gradients(model, batch, *, dense_selection):
    model.zero_grad()
    trace = Trace(wants_index_loss=True, dense_selection=dense_selection)
    context = PackedContext(model.config, batch.rows, batch.plan)
    losses = batch_losses(model, batch, context, batch.weight_sums, LossConfig(), trace)
    losses.total.backward()
    return losses, {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("dense_selection", [True, False], ids=["all entries", "the indexer's choice"])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_plan_of_fixed_shapes_changes_no_loss_and_no_gradient(model, lengths, dense_selection, seed):
    tight, fixed = padded(model, lengths, seed)
    expected, gradients = losses_and_gradients(model, tight, dense_selection=dense_selection)
    losses, got = losses_and_gradients(model, fixed, dense_selection=dense_selection)
    assert losses.next_token.item() == expected.next_token.item()
    assert losses.mtp.item() == expected.mtp.item()
    assert losses.index.item() == pytest.approx(expected.index.item(), rel=1e-5)
    for name, gradient in gradients.items():
        scale = gradient.abs().max().clamp(min=1e-8)
        assert ((got[name] - gradient).abs().max() / scale).item() < 1e-5, name


def test_a_batch_copied_into_the_places_of_another_gives_its_own_loss(model, seed):
    places = padded(model, LENGTHS[0], seed)[1]
    for lengths in LENGTHS[1:]:
        _, batch = padded(model, lengths, seed)
        assert [t.shape for t in batch.tensors()] == [t.shape for t in places.tensors()]
        expected, _ = losses_and_gradients(model, batch, dense_selection=True)
        places.copy_(batch)
        losses, _ = losses_and_gradients(model, places, dense_selection=True)
        assert losses.total.item() == expected.total.item()
