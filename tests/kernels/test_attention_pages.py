"""Attention and indexer wherever keys lie and however little memory there is: the same bits."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from benthic.kernels.index_scores import index_scores, pick_entries
from benthic.kernels.select_topk import select_topk
from benthic.kernels.sparse_attention import KeyTables, plan_tiles, sparse_attention
from benthic.kernels.sparse_attention.cases import Pass, Run, index_inputs, inputs, make_pass, random_picks

LONGEST = 700
SPANS = ((0, 0, 70), (1, 250, 1), (0, 190, 1), (1, 600, 90), (0, 300, 9), (1, 0, 3))
PAGES = {0: (16, 64, 128), 4: (16, 64, 128, 256), 16: (16, 64, 128), 128: (64, 128, 256)}
CASES = [(ratio, page) for ratio, pages in PAGES.items() for page in pages]


def placed(where: Pass, window: Tensor, entries: Tensor) -> Tensor:
    """The kv buffer with the keys of positions [2, longest, d] and entries in their slots, garbage elsewhere."""
    keys = torch.randn(where.num_slots, window.shape[-1]) * 100
    for sequence in range(2):
        for position in range(LONGEST):
            keys[where.window_slot(sequence, position)] = window[sequence, position]
        for entry in range(LONGEST // where.ratio if where.ratio else 0):
            keys[where.entry_slot(sequence, entry)] = entries[sequence, entry]
    return keys


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("with_picks", [False, True], ids=["all", "picks"])
@pytest.mark.parametrize("ratio", PAGES)
def test_shuffled_pages_of_any_size_give_the_bits_of_packed_ones(ratio: int, with_picks: bool, impl: str) -> None:
    if with_picks and not ratio:
        pytest.skip("a layer of ratio 0 has no entries to pick")
    window, entries = torch.randn(2, LONGEST, 16), torch.randn(2, LONGEST, 16)
    results = []
    given = inputs(make_pass(ratio, SPANS, longest=LONGEST))
    for page in (64, *PAGES[ratio]):
        where = make_pass(ratio, SPANS, longest=LONGEST, page=page)
        here = given | {"plan": where.plan, "keys": placed(where, window, entries)}
        picks = random_picks(where, 20) if with_picks else None
        results.append(sparse_attention(**here, picks=picks, impl=impl))
    for page, result in zip(PAGES[ratio], results[1:], strict=True):
        assert torch.equal(result, results[0]), f"pages of {page}"


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("ratio", [4, 16])
def test_index_scores_and_picks_ignore_where_keys_lie(ratio: int, impl: str) -> None:
    window, entries = torch.randn(2, LONGEST, 8), torch.randn(2, LONGEST, 8)
    results = []
    given = index_inputs(make_pass(ratio, SPANS, longest=LONGEST))
    for page in (64, *PAGES[ratio]):
        where = make_pass(ratio, SPANS, longest=LONGEST, page=page)
        keys = placed(where, window, entries)[where.tables.entry_base :].contiguous()
        here = given | {"keys": keys}
        groups = where.plan.groups
        results.append(
            [index_scores(**here, tiles=tiles, impl=impl) for tiles in groups]
            + [pick_entries(**here, tiles=tiles, k=11, impl=impl) for tiles in groups]
        )
    for page, result in zip(PAGES[ratio], results[1:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(result, results[0], strict=True)), f"pages of {page}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("with_picks", [False, True], ids=["all", "picks"])
def test_attention_in_pieces_has_the_bits_of_attention_at_once(dtype: torch.dtype, impl: str, with_picks: bool) -> None:
    where = make_pass(4, [(0, 3000, 150), (1, 2999, 1), (0, 40, 70)], longest=3200)
    given = inputs(where, dtype)
    picks = random_picks(where, 50) if with_picks else None
    at_once = sparse_attention(**given, picks=picks, impl=impl, workspace_bytes=1 << 40)
    for workspace_bytes in (1, 1 << 20, 4 << 20):
        pieces = sparse_attention(**given, picks=picks, impl=impl, workspace_bytes=workspace_bytes)
        assert torch.equal(pieces, at_once), workspace_bytes


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("k", [1, 60, 64, 65, 300, 5000])
@pytest.mark.parametrize("kind", ["smooth", "tied"])
def test_a_running_choice_over_pieces_is_the_choice_among_all(impl: str, k: int, kind: str) -> None:
    where = make_pass(4, [(0, 3000, 150), (1, 2999, 1), (0, 40, 70)], longest=3200)
    given = index_inputs(where)
    if kind == "tied":
        # Scores of one step only, zeros among them; gamma of one value.
        given = {name: value.sign() if name != "gamma" else torch.ones_like(value) for name, value in given.items()}
    for tiles in where.plan.groups:
        scores = index_scores(**given, tiles=tiles, impl=impl)
        expected = select_topk(scores, k, impl="reference")
        for workspace_bytes in (1, 200_000, 1 << 40):
            picks = pick_entries(**given, tiles=tiles, k=k, impl=impl, workspace_bytes=workspace_bytes)
            assert torch.equal(picks, expected), workspace_bytes


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_short_runs_have_the_bits_of_tiles(impl: str) -> None:
    where = make_pass(4, [(0, 0, 300)])
    given = inputs(where)
    whole = sparse_attention(**given, impl=impl)
    for start, length in [(100, 2), (120, 16), (190, 9), (200, 17)]:
        part = where.of_runs([(0, start, length)])
        rows = given | {"query": given["query"][start : start + length], "plan": part.plan}
        assert torch.equal(sparse_attention(**rows, impl=impl), whole[start : start + length]), (start, length)
    assert all(tiles.rows_per_tile == 1 for tiles in where.of_runs([(0, 120, 16)]).plan.groups)
    assert any(tiles.rows_per_tile == 64 for tiles in where.of_runs([(0, 200, 17)]).plan.groups)


MEASURE = """
import sys, torch
from benthic.kernels.index_scores import pick_entries
from benthic.kernels.sparse_attention import KeyTables, plan_tiles, sparse_attention
from benthic.kernels.sparse_attention.cases import index_inputs, inputs, latent_inputs, make_latent_pass, make_pass

def peak(call):
    open("/proc/self/clear_refs", "w").write("5")  # the high-water mark starts anew
    read = lambda name: next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))
    before = read("VmRSS")
    result = call()
    return read("VmHWM") - before

impl, kind, bounds = sys.argv[1], sys.argv[2], [int(word) for word in sys.argv[3:]]
torch.set_num_threads(1)
for entries in (1024, 1 << 16):  # the first compiles what must be compiled
    longest = 4 * entries if kind == "compressed" else entries
    make = (lambda *a, **b: make_pass(4, *a, **b)) if kind == "compressed" else make_latent_pass
    where = make([(0, longest - 64, 64), (1, longest - 1, 1)], longest=longest, page=128)
    attention = inputs(where, heads=4) if kind == "compressed" else latent_inputs(where, heads=4, dim=80, value_dim=64)
    index = index_inputs(where, heads=4)
    found = []
    for bound in bounds:
        def pick(): return [pick_entries(**index, tiles=t, k=64, impl=impl, workspace_bytes=bound)
                            for t in where.plan.groups]
        picks = pick()
        found.append(peak(pick))
        for chosen in (None, picks):
            def attend(): return sparse_attention(**attention, picks=chosen, impl=impl, workspace_bytes=bound)
            found.append(peak(attend))
print(*found)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(("kind", "impl"), [("compressed", "auto"), ("compressed", "reference"), ("latent", "auto")])
def test_a_context_of_65536_entries_stays_inside_its_workspace(kind: str, impl: str) -> None:
    """Choosing, attending to all and attending to the choice; unbounded, the first two take more.

    That is 256k tokens of a compressed layer. A latent row would list 23 MB of keys.
    """
    workspace_bytes = 16 << 20
    # Every larger allocation comes from the system and goes back to it, so that resident memory is what is in use.
    environment = {"MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURE, impl, kind, str(workspace_bytes), str(1 << 40)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = [int(word) for word in done.stdout.split()]
    assert max(found[:3]) < workspace_bytes
    assert min(found[3:5]) > workspace_bytes


def test_planning_makes_nothing_as_long_as_a_context() -> None:
    sizes = []
    for start in (10, 1_000_000):
        tables = KeyTables(
            torch.zeros(1, 1, dtype=torch.int64), 128, {4: torch.zeros(1, 1, dtype=torch.int64)}, {4: 32}, 0
        )
        runs = [Run(0, 0, start, 1), Run(0, 1, start, 40)]
        device = torch.device("cpu")
        plan = plan_tiles(runs, tables, [0, 4], window=128, num_rows=41, device=device)[4]
        tensors = [plan.order] + [t for g in plan.groups for t in (g.queries, g.positions, g.used, g.sequence)]
        assert all(tiles.bias is None for tiles in plan.groups)
        sizes.append(sum(tensor.numel() for tensor in tensors))
    assert max(sizes) < 400
