"""V2, V3 and V3.2 train by the same line, each balanced in its way."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from benthic.errors import ConfigError
from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig, Yarn
from benthic.models.transformer import Transformer
from benthic.train.balance import BalanceConfig
from benthic.train.config import StageConfig, TrainConfig
from benthic.train.dropping import DroppingConfig
from benthic.train.feed import DeviceBatch, to_device
from benthic.train.item import Item
from benthic.train.packing import Layout, pack
from benthic.train.step import METRICS, TrainStep

V2 = ModelConfig(
    model_type="deepseek_v2",
    vocab_size=48,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    qk_rope_head_dim=8,
    q_lora_rank=0,
    rope_theta=10000.0,
    rope_scaling=Yarn(4.0, 256, mscale=0.7, mscale_all_dim=0.7),
    max_position_embeddings=1024,
    moe_intermediate_size=16,
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=3,
    routed_scaling_factor=4.0,
    kv_lora_rank=16,
    qk_nope_head_dim=8,
    v_head_dim=8,
    intermediate_size=24,
    first_k_dense_replace=1,
    scoring_func="softmax",
    topk_method="group_limited_greedy",
    n_group=4,
    topk_group=2,
    norm_topk_prob=False,
    hc_mult=1,
    num_nextn_predict_layers=0,
    expert_dtype="bf16",
    weight_dtype="bf16",
    scale_dtype="fp32",
)
V3 = replace(
    V2,
    model_type="deepseek_v3",
    q_lora_rank=16,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    norm_topk_prob=True,
    num_nextn_predict_layers=1,
    expert_dtype="fp8",
    weight_dtype="fp8",
)
V32 = replace(V3, model_type="deepseek_v32", index_n_heads=16, index_head_dim=16, index_topk=12)
FAMILIES = {"v2": V2, "v3": V3, "v3.2": V32}
Documents = Callable[[list[int]], list[Item]]


def tiny(config: ModelConfig) -> Transformer:
    torch.set_num_threads(1)
    return dummy_model(config, 1, device="cpu", min_rows=2)


def step_of(model: Transformer, **changes: object) -> TrainStep:
    stage = StageConfig(mixture="", tokens=1, rows=256, max_blocks=16, max_len=256)
    return TrainStep(model, TrainConfig(model="", output="", stages={"s": stage}, **changes))  # type: ignore[arg-type]


def batches(model: Transformer, items: Sequence[Item], spared: float = 0.0) -> list[DeviceBatch]:
    layout = Layout(256, 16, 256, len(model.mtp))
    return [to_device(pack(items, layout), model.config, layout, torch.device("cpu"), spared)]


def take(step: TrainStep, given: list[DeviceBatch], **changes: object) -> dict[str, float]:
    arguments = {"learning_rate": 0.005, "balance_rate": 0.01, "dense_selection": False, "rounded": False} | changes
    return dict(zip(METRICS, step(given, **arguments).metrics.tolist(), strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dozen_steps_lower_the_loss_within_the_devices_of_the_gate(family: str, documents: Documents) -> None:
    model = tiny(FAMILIES[family])
    step, given = step_of(model), batches(model, documents([60, 90, 40]))
    values = [take(step, given) for _ in range(12)]
    assert values[-1]["next_token"] < 0.8 * values[0]["next_token"]
    assert all(1 <= line["devices"] <= line["most_devices"] <= 2 for line in values)
    assert all(line["balance"] > 0 and line["dropped"] == 0 for line in values)
    assert (values[0]["index"] > 0) == (family == "v3.2") and (values[0]["mtp"] > 0) == (family != "v2")
    assert sorted(step.experts.routing) == ([1] if family == "v2" else [1, 2])


def test_without_the_limit_rows_touch_more_devices(documents: Documents) -> None:
    model = tiny(replace(V2, topk_method="greedy"))
    assert take(step_of(model), batches(model, documents([60, 90, 40])))["most_devices"] == 3


def test_the_bias_of_v3_moves_unless_frozen_by_the_rate(documents: Documents) -> None:
    model = tiny(V3)
    step, given = step_of(model), batches(model, documents([60, 90, 40]))
    biases = {name: buffer for name, buffer in model.named_buffers() if name.endswith("gate.bias")}
    assert set(biases) == {"layers.1.ffn.gate.bias", "mtp.0.ffn.gate.bias"}
    take(step, given, balance_rate=0.0)
    assert all(not bias.any() for bias in biases.values())
    take(step, given)
    assert all(bias.any() for bias in biases.values())


def test_the_losses_of_v2_even_the_load_out(documents: Documents) -> None:
    """The same steps with weights a thousand times the published ones, where thirty steps show what a run does."""
    none = BalanceConfig(expert_weight=0, device_weight=0, communication_weight=0)
    heavy = BalanceConfig(expert_weight=3.0, device_weight=0, communication_weight=0)
    loads, items = {}, documents([60, 90, 40])
    for name, balance in (("off", none), ("on", heavy)):
        model = tiny(replace(V2, topk_method="greedy", n_group=1, topk_group=1))
        step, given = step_of(model, balance=balance), batches(model, items)
        loads[name] = [take(step, given)["max_load"] for _ in range(30)][-5:]
    assert max(loads["on"]) < min(loads["off"]), loads


def test_token_dropping_drops_in_training_and_never_from_spared_sequences(documents: Documents) -> None:
    model = tiny(V2)
    step = step_of(model, dropping=DroppingConfig(enabled=True))
    items = documents([60, 90, 40])
    frozen = {"learning_rate": 0.0, "balance_rate": 0.0}
    dropped = take(step, batches(model, items), **frozen)
    assert 0 < dropped["dropped"] < 0.5
    spared = take(step, batches(model, items, spared=1.0), **frozen)
    whole = take(step_of(model), batches(model, items), **frozen)
    assert spared == whole and dropped["next_token"] != whole["next_token"]


def test_the_expanded_form_of_attention_trains_to_nearly_the_same_gradient(documents: Documents) -> None:
    model, items = tiny(V3), documents([60, 90, 40])
    gradients = {}
    for form in ("absorbed", "expanded"):
        step = step_of(model, latent_form=form)
        take(step, batches(model, items), learning_rate=0.0, balance_rate=0.0)
        gradients[form] = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for name, gradient in gradients["absorbed"].items():
        scale = gradient.abs().max().clamp(min=1e-6)
        assert ((gradients["expanded"][name] - gradient).abs().max() / scale).item() < 1e-3, name
    with pytest.raises(ConfigError, match=r'latent_form \("both"\) must be "absorbed" or "expanded"'):
        step_of(model, latent_form="both")
