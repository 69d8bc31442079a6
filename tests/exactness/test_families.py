"""The law of V4 holds for its ancestors: the bits of a request are those it would have alone, however it is served.

Latent attention has no windows, so all that matches of a prompt is usable; one form, the absorbed one, computes
prompts, decodes, scores and training.
"""

import random
from dataclasses import replace

import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.cache.pools import CachePools
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.scoring import packed_logprobs
from benthic.models.checkpoint import empty_model
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer
from tests.engine.scripted_drafter import OracleDrafter
from tests.exactness.families import CONFIGS, FAMILIES, PAGE, WITH_DRAFTS, family_engine, family_model, fresh_model
from tests.exactness.passes import PagedPasses, differing_rows, mixture, packed, served
from tests.exactness.places import current
from tests.exactness.serving import alone, assert_same, each_alone, ids, random_requests, request, serve
from tests.exactness.test_random_load import PROBE, Load

LENGTHS = (150, 65, 16, 5, 1, 97)
STEPS = (1, 1, 2, 3, 7, 15, 16, 17, 33, 64)

TWO_PROMPTS = CacheCapacity(num_pages=8, num_windows=0, num_rows=4, max_len=100)
"""Of four pages each; an answer needs one more, so somebody has to go."""

EACH_FAMILY = pytest.mark.parametrize("name", FAMILIES)


def sequences(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [list(ids(rng, length)) for length in LENGTHS]


@EACH_FAMILY
def test_packed_rows_are_those_of_each_sequence_alone(name: str) -> None:
    model, texts = family_model(name), sequences(1)
    alone_rows = [packed(model, [one])[0] for one in texts]
    order = random.Random(2).sample(range(len(texts)), len(texts))
    assert differing_rows(packed(model, texts), alone_rows) == 0
    assert differing_rows(packed(model, [texts[i] for i in order]), [alone_rows[i] for i in order]) == 0


@EACH_FAMILY
@pytest.mark.parametrize("seed", [0, 1])
def test_random_mixtures_through_the_cache_give_the_packed_rows(name: str, seed: int) -> None:
    model, texts = family_model(name), sequences(seed)
    schedule = mixture(random.Random(seed), texts, STEPS)
    assert differing_rows(served(model, texts, schedule), packed(model, texts)) == 0


@EACH_FAMILY
@pytest.mark.parametrize(
    ("numerics", "dtype"), [("plain", torch.bfloat16), ("quantized", torch.float32), ("quantized", torch.bfloat16)]
)
def test_mixtures_are_exact_in_every_dtype_and_policy(name: str, numerics: str, dtype: torch.dtype) -> None:
    model = empty_model(CONFIGS[name], device=current().device, dtype=dtype, numerics=numerics)
    model.load_state_dict(family_model(name).state_dict())
    model, texts = model.freeze(), sequences(7)
    schedule = mixture(random.Random(7), texts, STEPS)
    assert differing_rows(served(model, texts, schedule), packed(model, texts)) == 0


@pytest.mark.parametrize("name", ["V3", "V3.2"])
def test_single_rows_of_many_heads_change_their_kernel_at_some_length_and_no_bit(name: str) -> None:
    """64 heads over 128 keys are worth a library's product, fewer keys are not; V3.2 picks more than that."""
    wide = {"num_attention_heads": 64, "num_hidden_layers": 2} | ({"index_topk": 140} if name == "V3.2" else {})
    model = fresh_model(name, config=replace(CONFIGS[name], **wide)).freeze()  # type: ignore[arg-type]
    rng = random.Random(2)
    texts = [list(ids(rng, length)) for length in (170, 136)]
    decodes = [(i, at, at + 1) for at in range(120, 170) for i, text in enumerate(texts) if at < len(text)]
    schedule = [[(0, 0, 120), (1, 0, 120)], *([step] for step in decodes)]
    assert differing_rows(served(model, texts, schedule), packed(model, texts)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_the_official_format_of_v3_2_changes_no_bit(dtype: torch.dtype) -> None:
    """Chunks, single tokens, drafts that are rejected, and a hit, out of bytes."""
    model = empty_model(CONFIGS["V3.2"], device=current().device, dtype=dtype, numerics="quantized")
    model.load_state_dict(family_model("V3.2").state_dict())
    model, text = model.freeze(), list(ids(random.Random(4), 100))
    passes = PagedPasses(model, num_rows=1, max_len=160, page_size=PAGE, max_draft_len=2, storage="official")
    assert passes.pools.kv[0].dtype is torch.uint8
    expected = packed(model, [text])[0]
    row = passes.open(text)
    found = [passes.read(row, text[:70], chunk=23)]
    passes.run([(row, [text[70], 3, 4])])
    found.append(passes.read(row, text, chunk=1))
    assert differing_rows([torch.cat(found)], [expected]) == 0
    passes.cache.close(row, finished=True)
    row = passes.open(text)
    assert row.start_len == 96
    assert differing_rows([passes.read(row, text)], [expected[96:]]) == 0


@EACH_FAMILY
def test_the_trainers_forward_pass_has_the_bits_of_the_engines(name: str) -> None:
    """Its weights are tracked by autograd, and every one of them gets a gradient."""
    trained, texts = fresh_model(name), sequences(9)
    trained.train().requires_grad_(True)
    rows = build_rows([(i, 0, one) for i, one in enumerate(texts)], trained.min_rows, trained.device)
    logits = trained.logits(trained.hidden(trained(rows, PackedContext(trained.config, rows))))
    schedule = mixture(random.Random(9), texts, STEPS)
    computed = served(family_model(name), texts, schedule)
    assert torch.equal(logits[: rows.num_rows].detach(), torch.cat(computed))
    logits[: rows.num_rows].square().sum().backward()
    untouched = {key for key, weight in trained.named_parameters() if weight.grad is None}
    assert all(key.startswith("mtp.") or ".indexer." in key or key.endswith("gate.bias") for key in untouched)


@EACH_FAMILY
def test_a_score_is_the_engines_log_probability(name: str) -> None:
    model = family_model(name)
    probe = request("probe", ids(random.Random(3), 70), temperature=1.0, max_tokens=20)
    [bits] = each_alone(model, [probe], PAGE).values()
    assert bits.logprobs is not None
    scores = packed_logprobs(model, [*probe.prompt_ids, *bits.token_ids])
    assert scores[len(probe.prompt_ids) - 1 :].tolist() == [entry.chosen for entry in bits.logprobs]


@EACH_FAMILY
@pytest.mark.parametrize(
    "budgets",
    [
        {"max_num_seqs": 16},
        {"max_num_seqs": 3, "max_batched_tokens": 37, "prefill_chunk": 11, "overlap_steps": 1},
        {"max_num_seqs": 2, "page_size": 32, "prefill_chunk": 33, "prefix_cache": False},
    ],
    ids=["wide", "small chunks, one pass ahead", "larger pages, no cache"],
)
def test_any_batch_order_chunking_and_arrival_gives_the_bits_of_the_request_alone(
    name: str, budgets: dict[str, object]
) -> None:
    rng = random.Random(name)
    requests = random_requests(rng, 5, longest=200, max_tokens=16)
    engine = Engine(family_model(name), family_engine(**budgets))
    assert_same(each_alone(family_model(name), requests, PAGE), serve(engine, requests, rng, 0.4))


@EACH_FAMILY
def test_a_hit_at_every_page_boundary_uses_all_that_matches(name: str) -> None:
    model, rng = family_model(name), random.Random(name)
    first = ids(rng, 6 * PAGE + 3)
    engine = Engine(model, family_engine(retention="none"))
    serve(engine, [request("first", first, max_tokens=2)])
    for boundary in range(PAGE, 6 * PAGE + 1, PAGE):
        probe = request(f"to {boundary}", first[:boundary] + ids(rng, rng.choice((1, 2, 16, 19))), max_tokens=6)
        finals = serve(engine, [probe])
        report = finals[probe.request_id].report
        assert report is not None
        assert (report.usable_match, report.compressed_match, report.replayed) == (boundary, boundary, 0)
        assert_same({probe.request_id: alone(model, probe, PAGE)}, finals)


@EACH_FAMILY
@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_retracted_requests_go_on_with_the_same_bits(name: str, overlap_steps: int) -> None:
    model, rng = family_model(name), random.Random(5)
    requests = [request(f"r{i}", ids(rng, 4 * PAGE - 5), seed=i) for i in range(4)]
    engine = Engine(model, family_engine(admission_headroom=0, overlap_steps=overlap_steps), capacity=TWO_PROMPTS)
    finals = serve(engine, requests)
    assert engine.stats().num_retractions > 0, "nobody was retracted, so nothing was tested"
    assert_same(each_alone(model, requests, PAGE), finals)


@EACH_FAMILY
@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 50])
def test_forks_of_a_prompt_answer_as_if_alone(name: str, prompt_len: int) -> None:
    model = family_model(name)
    leader = request("leader", ids(random.Random(prompt_len), prompt_len), temperature=1.0)
    forks = [
        replace(request(f"fork {seed}", leader.prompt_ids, temperature=1.0, seed=seed), fork_of="leader")
        for seed in range(3)
    ]
    finals = serve(Engine(model, family_engine()), [leader, *forks])
    assert_same(each_alone(model, [leader, *forks], PAGE), finals)


@EACH_FAMILY
def test_a_request_has_one_answer_under_random_load(name: str) -> None:
    """Others share its beginning, are cancelled, cut in line, skip the cache; now and then the cache is flushed."""
    drafts = {"drafter": "mtp", "draft_len": 2} if name in WITH_DRAFTS else {"drafter": "ngram"}
    config = family_engine(max_num_seqs=6, max_batched_tokens=64, prefill_chunk=21, overlap_steps=1, **drafts)
    load = Load(Engine(family_model(name), config), random.Random(name))
    load.run(8)
    assert load.answers == {alone(family_model(name), PROBE, PAGE): load.answers.total()}
    assert len(load.hits) > 1, "the probe was served in one way only"


def drafted(finals: dict[str, FinalOutput]) -> tuple[int, int]:
    """(drafted, accepted) tokens of all requests."""
    reports = [final.report for final in finals.values() if final.report is not None]
    return sum(report.drafted for report in reports), sum(report.accepted for report in reports)


FEW = tuple((token_id, 60.0) for token_id in (5, 6, 7))
"""A bias after which answers consist of three tokens: then something is guessed, right and wrong."""


def few_tokens(rng: random.Random, count: int) -> list[Request]:
    """Requests whose prompts and answers are of three tokens."""
    prompts = [tuple(rng.choice(FEW)[0] for _ in range(rng.choice((20, 33, 47)))) for _ in range(count)]
    return [
        request(f"r{i}", prompt, max_tokens=24, seed=i, temperature=0.4 * i, logit_bias=FEW)
        for i, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    ("name", "drafter"),
    [*((name, "ngram") for name in FAMILIES), *((name, "mtp") for name in WITH_DRAFTS)],
)
@pytest.mark.parametrize("depth", [1, 3])
def test_drafts_change_no_bit(name: str, drafter: str, depth: int) -> None:
    """Chunks and hits included: the second round finds the first one's pages, and drafts behind them."""
    model, rng = family_model(name), random.Random(depth)
    requests = few_tokens(rng, 3)
    again = [replace(one, request_id=f"again {one.request_id}") for one in requests]
    config = family_engine(drafter=drafter, draft_len=depth, draft_adaptive=False, prefill_chunk=PAGE - 1)
    engine = Engine(model, config)
    finals = serve(engine, requests, rng, 0.5) | serve(engine, again, rng, 0.5)
    assert_same(each_alone(model, [*requests, *again], PAGE), finals)
    count, accepted = drafted(finals)
    assert 0 < accepted < count, "drafts must be accepted and rejected, or nothing was tested"


@EACH_FAMILY
def test_drafts_that_are_mostly_right_survive_retraction(name: str) -> None:
    model, rng = family_model(name), random.Random(6)
    requests = [request(f"r{i}", ids(rng, 4 * PAGE - 5), seed=i, temperature=0.0) for i in range(4)]
    expected = each_alone(model, requests, PAGE)
    known = {one.request_id: [*one.prompt_ids, *expected[one.request_id].token_ids] for one in requests}
    config = family_engine(drafter="ngram", draft_len=4, draft_adaptive=False, admission_headroom=0)
    engine = Engine(model, config, drafter=OracleDrafter(known, error_rate=0.3, seed=0), capacity=TWO_PROMPTS)
    finals = serve(engine, requests)
    assert engine.stats().num_retractions > 0
    assert_same(expected, finals)


@EACH_FAMILY
def test_after_an_update_answers_are_those_of_the_new_weights(name: str) -> None:
    """Also of a prompt that was cached under the old ones."""
    drafter = "mtp" if name in WITH_DRAFTS else "none"
    engine = Engine(fresh_model(name).freeze(), family_engine(drafter=drafter))
    probe = request("probe", ids(random.Random(8), 3 * PAGE + 5))
    assert_same({"probe": alone(family_model(name), probe, PAGE)}, serve(engine, [probe]))
    new = family_model(name, seed=4)
    engine.update_weights(dict(new.state_dict()))
    assert alone(new, probe, PAGE) != alone(family_model(name), probe, PAGE)
    assert_same({"probe": alone(new, probe, PAGE)}, serve(engine, [probe]))


def poison(pools: CachePools) -> None:
    """Writes NaN everywhere but under the null ids."""
    for layer in range(len(pools.geometry.layers)):
        for tensor in (pools.kv[layer], pools.index[layer]):
            if tensor is not None:
                tensor[PAGE:] = float("nan")


def rows_differ(model: Transformer, text: list[int]) -> bool:
    """Whether a sequence read in chunks, from a cache full of NaN, differs from the packed one; also behind a hit."""
    passes = PagedPasses(model, num_rows=2, max_len=300, page_size=PAGE, max_draft_len=2)
    poison(passes.pools)
    row = passes.open(text)
    differs = differing_rows([passes.read(row, text, chunk=21)], packed(model, [text])) > 0
    passes.cache.close(row, finished=True)
    other = text[: 2 * PAGE] + text[:30]
    row = passes.open(other)
    start = row.start_len
    assert start == 2 * PAGE
    rest = packed(model, [other])[0][start:]
    return differs or differing_rows([passes.read(row, other, chunk=7)], [rest]) > 0


@EACH_FAMILY
def test_nothing_that_earlier_owners_left_reaches_a_row(name: str) -> None:
    assert not rows_differ(family_model(name), list(ids(random.Random(7), 120)))


@EACH_FAMILY
def test_pages_that_are_not_cleared_would_be_found(cpu_only: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: one masked NaN is enough. A GPU's kernels do not read what is masked."""
    monkeypatch.setattr(CachePools, "apply", lambda pools, work: None)
    assert rows_differ(family_model(name), list(ids(random.Random(7), 120)))


@EACH_FAMILY
def test_wrong_entries_behind_a_hit_would_be_found(name: str) -> None:
    """Negative control: the entries of one cached page of the first layer, halved."""
    model, text = family_model(name), list(ids(random.Random(9), 2 * PAGE + 5))
    passes = PagedPasses(model, num_rows=1, max_len=100, page_size=PAGE)
    row = passes.open(text)
    passes.read(row, text)
    passes.cache.close(row, finished=True)
    row = passes.open(text)
    start = row.start_len
    assert start == 2 * PAGE
    first = int(passes.cache.tables.pages[row.index, 0]) * PAGE
    passes.pools.kv[0][first : first + PAGE] *= 0.5
    assert differing_rows([passes.read(row, text)], [packed(model, [text])[0][start:]]) > 0
