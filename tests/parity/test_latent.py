"""Latent attention: its two forms are one function, its gradients are right, and rows ignore their neighbours."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benthic.models.attention import LatentAttention
from benthic.models.attention.indexer import TokenIndexer
from benthic.models.config import ModelConfig
from benthic.models.context import LatentForm, Rows
from benthic.models.numerics import LayerInput, Numerics
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.trace import Trace
from tests.parity.family import ours_of_family, random_family_model, random_family_sizes
from tests.parity.models import random_ids

TINY = {
    "vocab_size": 11, "hidden_size": 10, "num_hidden_layers": 1, "first_k_dense_replace": 1, "intermediate_size": 8,
    "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 6, "kv_lora_rank": 5, "qk_nope_head_dim": 3,
    "qk_rope_head_dim": 4, "v_head_dim": 3, "rope_theta": 10000.0, "max_position_embeddings": 512,
    "moe_intermediate_size": 4, "n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1,
    "routed_scaling_factor": 1.0, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
}  # fmt: skip
TINY_V3 = ModelConfig.from_json(TINY | {"model_type": "deepseek_v3"})
TINY_V32 = ModelConfig.from_json(
    TINY | {"model_type": "deepseek_v32", "index_n_heads": 16, "index_head_dim": 8, "index_topk": 7}
)
FORMS: tuple[LatentForm, ...] = ("absorbed", "expanded")


def attention(config: ModelConfig, dtype: torch.dtype = torch.float32) -> LatentAttention:
    layer = LatentAttention(config, 0, config.layers[0], Numerics())
    generator = torch.Generator().manual_seed(3)
    for name, parameter in layer.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = (1 + 0.3 * noise if "norm" in name else noise * parameter.shape[-1] ** -0.5).to(dtype)
    return layer


def rows_of(*lengths: int) -> Rows:
    return build_rows([(number, 0, [0] * length) for number, length in enumerate(lengths)], 1)


def attend(layer: LatentAttention, config: ModelConfig, h: Tensor, rows: Rows, form: LatentForm) -> Tensor:
    return layer(LayerInput(h, h), PackedContext(config, rows, latent_form=form))


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32"])
def test_both_forms_are_equal_by_algebra(family, seed):
    sizes = random_family_sizes(family, seed)
    model = ours_of_family(random_family_model(sizes, seed), sizes)
    rows = build_rows([(0, 0, random_ids(sizes["vocab_size"], 150, 1)), (1, 0, [1] * 65), (2, 0, [2])], model.min_rows)
    h = torch.randn(len(rows.token_ids), sizes["hidden_size"])
    for block in model.layers:
        absorbed, expanded = (attend(block.attn, model.config, h, rows, form)[: rows.num_rows] for form in FORMS)
        assert (absorbed - expanded).abs().max() <= 1e-6 * absorbed.abs().max().clamp(min=1)
        assert not torch.equal(absorbed, expanded), "one form ran twice"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", [TINY_V3, replace(TINY_V3, q_lora_rank=0), TINY_V32], ids=["v3", "v2-lite", "v32"])
def test_gradients_are_the_numeric_ones(config, form):
    layer = attention(config, torch.float64)
    rows = rows_of(9, 3)
    h = torch.randn(12, config.hidden_size, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters() if "indexer" not in name]

    def call(h: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(names, values, strict=True))
        context = PackedContext(config, rows, latent_form=form)
        return torch.func.functional_call(layer, given, (LayerInput(h, h), context))  # type: ignore[no-any-return]

    leaves = [layer.get_parameter(name).detach().requires_grad_() for name in names]
    torch.autograd.gradcheck(call, (h, *leaves), nondet_tol=0.0, fast_mode=True)


@pytest.mark.parametrize("config", [TINY_V3, TINY_V32], ids=["v3", "v32"])
def test_float32_gradients_of_both_forms_are_near_those_of_float64(config):
    rows, grads = rows_of(70, 65, 9), {}
    h = torch.randn(144, config.hidden_size, dtype=torch.float64)
    for form, dtype in [("absorbed", torch.float64), *((form, torch.float32) for form in FORMS)]:
        layer, x = attention(config, dtype), h.detach().to(dtype, copy=True).requires_grad_()
        (attend(layer, config, x, rows, form) * torch.linspace(-1, 1, config.hidden_size)).sum().backward()
        own = {name: p.grad for name, p in layer.named_parameters() if "indexer" not in name} | {"h": x.grad}
        for name, expected in grads.setdefault("exact", own).items():
            assert (own[name] - expected).abs().max() <= 2e-5 * expected.abs().max(), (form, name)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32"])
def test_a_row_has_the_same_bits_whatever_stands_before_behind_or_beside_it(family):
    sizes = random_family_sizes(family, 1)
    model = ours_of_family(random_family_model(sizes, 1), sizes)
    ids = random_ids(sizes["vocab_size"], 150, 1)

    def logits(*sequences: list[int]) -> list[Tensor]:
        rows = build_rows([(i, 0, one) for i, one in enumerate(sequences)], model.min_rows)
        context = PackedContext(model.config, rows, latent_form="absorbed")
        with torch.no_grad():
            found = model.logits(model.hidden(model(rows, context)))[: rows.num_rows]
        return list(found.split([len(one) for one in sequences]))

    whole = logits(ids)[0]
    assert torch.equal(logits([3] * 77, ids, [5])[1], whole)
    for length in (1, 2, 63, 64, 65, 128, 129):
        assert torch.equal(logits(ids[:length])[0], whole[:length]), length


def test_a_row_reads_the_best_tokens_up_to_itself_and_all_of_them_while_they_are_few() -> None:
    layer, rows = attention(TINY_V32), rows_of(40)
    h, trace = torch.randn(40, TINY_V32.hidden_size), Trace(wants_picks=True)
    layer(LayerInput(h, h), PackedContext(TINY_V32, rows), trace)
    top_k = TINY_V32.index_topk
    for position, row in enumerate(trace.picks[0].tolist()):
        real = [entry for entry in row if entry >= 0]
        assert len(set(real)) == min(position + 1, top_k)
        assert all(entry <= position for entry in real)
    assert any(
        row[:top_k] != list(range(i - top_k + 1, i + 1)) for i, row in enumerate(trace.picks[0].tolist()[20:], 20)
    )


def test_the_indexer_learns_the_attention_of_its_layer_and_nothing_else_learns_from_it() -> None:
    layer, rows = attention(TINY_V32), rows_of(30, 11)
    h = torch.randn(41, TINY_V32.hidden_size, requires_grad=True)
    trace = Trace(wants_index_loss=True, dense_selection=True)
    layer(LayerInput(h, h), PackedContext(TINY_V32, rows), trace)
    loss = trace.index_losses[0]
    expected = _written_index_loss(layer, h.detach(), [30, 11])
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    loss.backward()
    assert h.grad is not None and not h.grad.any()
    for name, parameter in layer.named_parameters():
        has_gradient = parameter.grad is not None and bool(parameter.grad.abs().max() > 0)
        assert has_gradient is ("indexer" in name), name


def _written_index_loss(layer: LatentAttention, h: Tensor, lengths: list[int]) -> Tensor:
    """KL(attention summed over heads || softmax of index scores), written from family.md 3 and 5, row by row."""
    assert isinstance(layer.indexer, TokenIndexer)
    losses = []
    for x in h.split(lengths):
        length, c = len(x), TINY_V32
        latent = layer.q_norm(x @ layer.wq_a.weight.T)
        query = (latent @ layer.wq_b.weight.T).view(length, c.num_attention_heads, -1)
        ckv, turning = (x @ layer.wkv_a.weight.T).split([c.kv_lora_rank, c.qk_rope_head_dim], -1)
        made = (layer.kv_norm(ckv) @ layer.wkv_b.weight.T).view(length, c.num_attention_heads, -1)
        key = torch.cat([made[..., : c.qk_nope_head_dim], _turn(turning)[:, None].expand(-1, 2, -1)], -1)
        query = torch.cat([query[..., : c.qk_nope_head_dim], _turn(query[..., c.qk_nope_head_dim :])], -1)
        hidden = torch.ones(length, length).triu(1).bool()
        weights = (
            (torch.einsum("thd,jhd->htj", query, key) * c.softmax_scale).masked_fill(hidden, -torch.inf).softmax(-1)
        )
        target = weights.sum(0) / weights.sum(0).sum(-1, keepdim=True)
        indexer = layer.indexer
        iq = _turn_halves((latent @ indexer.wq_b.weight.T).view(length, c.index_n_heads, -1))
        ik = torch.nn.functional.layer_norm(x @ indexer.wk.weight.T, (c.index_head_dim,), eps=1e-6)
        ik = _turn_halves(ik * indexer.k_norm.weight + indexer.k_norm.bias)
        gamma = x @ indexer.weights_proj.weight.T * c.index_n_heads**-0.5
        scores = (torch.einsum("thd,jd->thj", iq, ik) * c.index_head_dim**-0.5).relu()
        scores = torch.einsum("th,thj->tj", gamma, scores).masked_fill(hidden, -torch.inf).log_softmax(-1)
        terms = target * (target.clamp(min=1e-9).log() - scores)
        losses.append(terms.masked_fill(hidden, 0).sum(-1))
    return torch.cat(losses).mean()


def _angles(x: Tensor) -> Tensor:
    angles = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(0, 4, 2) / 4)
    return angles if x.dim() == 2 else angles[:, None]


def _turn(x: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones(()), _angles(x))).flatten(-2)


def _turn_halves(x: Tensor) -> Tensor:
    a, b, rest = x.split([2, 2, x.shape[-1] - 4], -1)
    cos, sin = _angles(x).cos(), _angles(x).sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)
