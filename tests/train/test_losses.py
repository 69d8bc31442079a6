"""Packing changes no number: losses and gradients of a packed batch are those of its documents alone."""

import math

import numpy as np
import pytest
import torch

from benthic.models.packed import PackedContext
from benthic.models.trace import Trace
from benthic.train.feed import to_device
from benthic.train.item import Item
from benthic.train.losses import LossConfig, batch_losses
from benthic.train.packing import Layout, pack

CPU = torch.device("cpu")
LENGTHS = [5, 18, 33, 2, 140, 70]
# The indexer's loss is a mean over rows, so it is not a sum over documents: it is looked at apart.
SUMS = LossConfig(index_weight=0.0)


def losses_and_gradients(model, items, layout, weight_sums, loss=SUMS):
    batch = to_device(pack(items, layout), model.config, layout, CPU)
    context = PackedContext(model.config, batch.rows, batch.plan)
    model.zero_grad()
    trace = Trace(wants_index_loss=loss.index_weight > 0, dense_selection=True)
    losses = batch_losses(model, batch, context, weight_sums, loss, trace)
    losses.total.backward()
    return losses, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_loss_and_gradient_of_a_packed_batch_are_the_sums_over_its_documents_alone(model, documents):
    items = documents(LENGTHS)
    ones = torch.ones(2)
    packed, gradients = losses_and_gradients(model, items, Layout(300, 16, 300, 1), ones)
    alone = [losses_and_gradients(model, [item], Layout(len(item), 4, len(item), 1), ones) for item in items]
    for part in ("next_token", "mtp"):
        total = sum(getattr(losses, part).double() for losses, _ in alone)
        assert getattr(packed, part).item() == pytest.approx(total.item(), rel=1e-6)
    for name, gradient in gradients.items():
        total = sum(grads[name].double() for _, grads in alone if name in grads)
        scale = total.abs().max().clamp(min=1e-6)
        assert ((gradient - total).abs().max() / scale).item() < 1e-4, name


def test_changing_one_document_leaves_the_loss_of_the_others_alone(model, documents):
    first, second, third = documents([40, 150, 60])
    layout = Layout(256, 8, 256, 1)
    other = Item(np.flip(second.token_ids), second.weights)
    weights = second.weights.copy()
    weights[:] = 0
    weights[-1] = 1e-30

    def loss_of_the_rest(middle: Item) -> float:
        unweighted = Item(middle.token_ids, weights)
        return losses_and_gradients(model, [first, unweighted, third], layout, torch.ones(2))[0].total.item()

    assert loss_of_the_rest(second) == loss_of_the_rest(other)


def test_an_untrained_model_loses_about_the_logarithm_of_the_vocabulary(model, documents):
    items = [Item(item.token_ids, np.ones(len(item))) for item in documents(LENGTHS)]
    count = sum(len(item) - 1 for item in items)
    sums = torch.tensor([count, count - len(items) + 1], dtype=torch.float32)
    losses, _ = losses_and_gradients(model, items, Layout(300, 16, 300, 1), sums)
    assert losses.next_token.item() == pytest.approx(math.log(model.config.vocab_size), rel=0.05)
    assert losses.mtp.item() == pytest.approx(math.log(model.config.vocab_size), rel=0.05)


def test_only_weighted_predictions_give_gradient(model):
    """Prompt of 3 and response of 4: exactly the rows that predict the response."""
    item = Item([1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 1, 1, 1, 1])
    batch = pack([item], Layout(7, 2, 7, 1))
    assert np.flatnonzero(batch.weights[0]).tolist() == [2, 3, 4, 5]
    assert batch.targets[0, 2:6].tolist() == [4, 5, 6, 7]
    assert np.flatnonzero(batch.weights[1]).tolist() == [1, 2, 3, 4]
    assert batch.targets[1, 1:5].tolist() == [4, 5, 6, 7]


def test_the_indexer_learns_from_its_own_loss_only(model, documents):
    items, layout, ones = documents(LENGTHS), Layout(300, 16, 300, 1), torch.ones(2)
    _, without = losses_and_gradients(model, items, layout, ones)
    _, with_index = losses_and_gradients(model, items, layout, ones, LossConfig(index_weight=1.0))
    for name, gradient in with_index.items():
        if ".indexer." in name:
            assert gradient.abs().max() > 0, name
        else:
            torch.testing.assert_close(gradient, without[name], rtol=0, atol=0, msg=name)
