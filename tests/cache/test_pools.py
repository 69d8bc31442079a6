"""Pools start as zeros, cost memory only when written, and do the bookkeeping's work id by id."""

import numpy as np
import pytest
import torch
from torch import Tensor

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.pools import ALIGNMENT, CachePools
from benthic.cache.table_mirror import TableMirror
from benthic.cache.tables import PageTables
from benthic.cache.upload import send, upload
from benthic.cache.work import CacheWork, Copy, Restore

WINDOW, CSA, HCA = LayerCache(0, False, 8, 0), LayerCache(4, True, 8, 4), LayerCache(16, False, 8, 0)
LAYERS = (WINDOW, CSA, HCA, CSA, WINDOW)
CPU = torch.device("cpu")
NOTHING = CacheWork((), (), (), (), (), (), ())


def pools_of(num_pages: int = 5, dtype: torch.dtype = torch.float32) -> CachePools:
    geometry = CacheGeometry(page_size=16, window=8, layers=LAYERS, num_main_layers=4, max_draft_len=0)
    return CachePools(geometry, CacheCapacity(num_pages, 6, 3, 80), dtype=dtype, device=CPU)


def tensors(pools: CachePools) -> dict[tuple[str, int], Tensor]:
    kinds = {"kv": pools.kv, "index": pools.index, "rings": pools.rings, "snapshots": pools.snapshots}
    return {
        (name, layer): tensor
        for name, layers in kinds.items()
        for layer, tensor in enumerate(layers)
        if tensor is not None
    }


def fill(pools: CachePools) -> None:
    """Every number of every buffer different from its neighbours."""
    for tensor in tensors(pools).values():
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 1)


def ids_of(tensor: Tensor, num_ids: int) -> Tensor:
    return tensor.view(num_ids, -1)


def parts(pools: CachePools) -> dict[tuple[str, int], tuple[str, Tensor]]:
    """Every buffer by its kind of id: views [ids, numbers an id]."""
    found: dict[tuple[str, int], tuple[str, Tensor]] = {}
    for (name, layer), tensor in tensors(pools).items():
        if name == "kv":
            found["window", layer] = ("window", ids_of(tensor[: pools.entry_base], 7))
            if pools.geometry.layers[layer].ratio:
                found["entries", layer] = ("page", ids_of(tensor[pools.entry_base :], 6))
        else:
            kind = {"index": "page", "rings": "row", "snapshots": "window"}[name]
            found[name, layer] = (kind, ids_of(tensor, {"page": 6, "row": 3, "window": 7}[kind]))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_are_aligned_zeros_of_the_asked_shapes(dtype: torch.dtype) -> None:
    pools = pools_of(dtype=dtype)
    window = 7 * 16
    assert pools.entry_base == window
    shapes = {place: tuple(tensor.shape) for place, tensor in tensors(pools).items()}
    assert [shapes["kv", layer] for layer in range(5)] == [
        (window, 8), (window + 6 * 4, 8), (window + 6, 8), (window + 6 * 4, 8), (window, 8)
    ]  # fmt: skip
    assert shapes["index", 1] == (6 * 4, 4)
    assert shapes["rings", 1] == (3 * 8, 4 * 8 + 4 * 4)
    assert shapes["rings", 2] == (3 * 16, 2 * 8)
    assert shapes["snapshots", 3] == (7 * 4, 2 * 8 + 2 * 4)
    assert {name for name, layer in shapes if layer == 2} == {"kv", "rings"}
    for (name, _), tensor in tensors(pools).items():
        assert tensor.dtype == (torch.float32 if name in ("rings", "snapshots") else dtype)
        assert not tensor.any()
    for stack in pools._stacks:
        assert stack.kv.data_ptr() % ALIGNMENT == 0


def test_fresh_ids_are_cleared_in_every_layer_even_of_nan_and_no_other_is_touched() -> None:
    pools = pools_of()
    for tensor in tensors(pools).values():
        tensor.fill_(float("nan"))
    pools.apply(CacheWork((1, 3), (2,), (0,), (), (), (), ()))
    fresh = {"page": {1, 3}, "window": {2}, "row": {0}}
    for place, (kind, ids) in parts(pools).items():
        clean = (ids == 0).all(1).nonzero().flatten().tolist()
        assert set(clean) == fresh[kind], place
        assert ids.isnan().all(1).sum() == len(ids) - len(fresh[kind]), place


def test_copies_move_everything_of_an_id_and_nothing_else() -> None:
    pools = pools_of()
    fill(pools)
    before = {place: ids.clone() for place, (_, ids) in parts(pools).items()}
    work = CacheWork((4,), (5, 6), (2,), (), (Copy(1, 4),), (Copy(1, 5), Copy(2, 6)), (Copy(0, 2),))
    pools.apply(work)
    moved = {"page": {4: 1}, "window": {5: 1, 6: 2}, "row": {2: 0}}
    for place, (kind, ids) in parts(pools).items():
        for number, found in enumerate(ids):
            assert torch.equal(found, before[place][moved[kind].get(number, number)]), (place, number)


def test_a_restored_ring_holds_the_first_series_of_the_last_four_rows() -> None:
    pools = pools_of()
    fill(pools)
    boundary = 32
    pools.apply(CacheWork((), (), (1,), (Restore(1, 3, boundary),), (), (), ()))
    for layer in (1, 3):
        ring, snapshots = pools.rings[layer], pools.snapshots[layer]
        assert ring is not None and snapshots is not None
        for place in range(4):
            row = ring[8 + (boundary - 4 + place) % 8]
            half = torch.cat([row[0:8], row[16:24], row[32:36], row[40:44]])
            assert torch.equal(half, snapshots[3 * 4 + place])
            assert not torch.cat([row[8:16], row[24:32], row[36:40], row[44:48]]).any()
        assert not ring[8:12].any()


def test_a_fork_copies_a_ring_that_was_restored_in_the_same_work() -> None:
    pools = pools_of()
    fill(pools)
    pools.apply(CacheWork((), (), (1, 2), (Restore(1, 3, 16),), (), (), (Copy(1, 2),)))
    ring = pools.rings[1]
    assert ring is not None
    assert torch.equal(ring[8:16], ring[16:24])
    assert ring[8:16].any()


def test_no_work_touches_nothing() -> None:
    pools = pools_of()
    fill(pools)
    before = {place: tensor.clone() for place, tensor in tensors(pools).items()}
    pools.apply(NOTHING)
    assert all(torch.equal(tensor, before[place]) for place, tensor in tensors(pools).items())


def test_a_large_cache_takes_little_memory_until_it_is_written() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident_bytes()
    pools = pools_of(num_pages=3_000_000)
    assert pools.num_bytes > 1_000_000_000
    assert resident_bytes() - before < 50_000_000


def test_tables_on_the_cpu_are_the_managers_own_memory() -> None:
    tables = PageTables(2, 4)
    mirror = TableMirror(tables, CPU)
    tables.set_page(1, 2, 7)
    tables.set_window(0, 3, 5)
    assert mirror.pages[1, 2] == 7
    assert mirror.windows[0, 3] == 5


def follow_the_tables(device: torch.device) -> None:
    tables = PageTables(3, 5)
    tables.set_page(0, 1, 4)
    mirror = TableMirror(tables, device, is_copy=True)
    for step in range(20):
        mirror.update()
        assert torch.equal(mirror.pages.cpu(), torch.from_numpy(tables.pages))
        assert torch.equal(mirror.windows.cpu(), torch.from_numpy(tables.windows))
        tables.set_page(step % 3, step % 5, step + 1)
        tables.set_window(step % 3, (step + 1) % 5, step + 1)
        assert not torch.equal(mirror.pages.cpu(), torch.from_numpy(tables.pages))
        if step % 7 == 0:
            tables.clear(1, 3)


def test_copied_tables_follow_the_changed_cells() -> None:
    follow_the_tables(CPU)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tables_on_a_gpu_follow_the_changed_cells() -> None:
    follow_the_tables(torch.device("cuda"))


def test_sent_arrays_arrive_in_their_shapes_and_share_nothing() -> None:
    arrays = {"a": np.arange(6).reshape(2, 3), "none": np.zeros((0, 4), np.int64), "b": np.array([7])}
    shared, sent = upload(arrays, CPU), send(arrays, CPU)
    for name, array in arrays.items():
        assert sent[name].shape == shared[name].shape == array.shape
        assert torch.equal(sent[name], torch.from_numpy(array))
    arrays["a"][0, 0] = 9
    assert shared["a"][0, 0] == 9
    assert sent["a"][0, 0] == 0
