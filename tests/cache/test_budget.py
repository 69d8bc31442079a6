"""A cache is as large as it is useful and as the memory allows, and the account adds up."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benthic.cache.budget import (
    Budget,
    CacheUse,
    UnitBytes,
    least_capacity,
    plan_budget,
    size_text,
    unit_bytes,
    wanted_capacity,
)
from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.memory import available_bytes, measure_peak_bytes
from benthic.cache.pools import CachePools
from benthic.cache.storage import Storage, WideStorage, key_storage
from benthic.cache.workspace import Workspace
from benthic.errors import ConfigError

CPU = torch.device("cpu")
LAYERS = (LayerCache(0, False, 32, 0), LayerCache(4, True, 32, 16), LayerCache(128, False, 32, 0))
GEOMETRY = CacheGeometry(page_size=128, window=128, layers=LAYERS, num_main_layers=3, rope_dim=8)
USE = CacheUse(max_num_seqs=8, max_batched_tokens=1024, max_len=8192)
UNIT = unit_bytes(GEOMETRY, WideStorage(torch.float32))
MIB = 1 << 20


def budget(cache_bytes: int | None = None, available: int = 1 << 34, use: CacheUse = USE, **more: Any) -> Budget:
    return plan_budget(GEOMETRY, use, UNIT, available_bytes=available, cache_bytes=cache_bytes, **more)


def least_bytes(use: CacheUse = USE) -> int:
    """Found from the refusal of nothing at all."""
    with pytest.raises(ConfigError) as error:
        budget(1, use=use)
    return int(str(error.value).split(">= ")[1].split()[0])


@pytest.mark.parametrize("storage", ["wide", "official"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_units_add_up_to_what_the_pools_take(dtype: torch.dtype, storage: Storage) -> None:
    found = plan_budget(
        GEOMETRY, USE, unit_bytes(GEOMETRY, key_storage(storage, GEOMETRY, dtype, "quantized")), available_bytes=1 << 34
    )
    pools = CachePools(GEOMETRY, found.capacity, dtype=dtype, device=CPU, storage=storage, numerics="quantized")
    tables = found.capacity.num_rows * 64 * 16
    assert found.pool_bytes == pools.num_bytes + tables


def test_plenty_buys_every_request_two_full_contexts_and_no_more() -> None:
    found = budget()
    assert found.capacity == wanted_capacity(GEOMETRY, USE)
    assert found.capacity.num_pages == 2 * 8 * 64 + 8
    running, chunk, sessions, checkpoints = 8 * 3, 8, 2 * 16, 2 * 8 + 0
    assert found.capacity.num_windows == running + chunk + sessions + checkpoints
    assert found.pool_bytes < 1 << 34


def test_scarcity_shrinks_pages_and_windows_together() -> None:
    least, wanted = least_capacity(GEOMETRY, USE), wanted_capacity(GEOMETRY, USE)
    sizes = [budget(least_bytes() + (budget().pool_bytes - least_bytes()) * part // 8).capacity for part in range(9)]
    assert sizes[0] == least
    assert sizes[-1] == wanted
    for before, after in zip(sizes, sizes[1:], strict=False):
        assert before.num_pages < after.num_pages
        assert before.num_windows < after.num_windows


@pytest.mark.parametrize("part", [1.0, 1.1, 1.7, 2.5])
def test_the_limit_is_kept_and_used(part: float) -> None:
    limit = int(least_bytes() * part)
    found = budget(limit)
    step = (budget().pool_bytes - least_bytes()) // 1000
    assert limit - UNIT.window - UNIT.page - step <= found.pool_bytes <= limit


def test_without_a_limit_workspace_and_a_reserve_are_left() -> None:
    needed = least_bytes()
    found = budget(available=10 * needed, workspace=Workspace(4 * needed, 3 * needed))
    assert needed <= found.pool_bytes <= 2 * needed


def test_too_little_memory_says_what_to_change() -> None:
    message = (
        r"cache_bytes \(1000\) must be >= \d+ to hold one context of 8192 tokens beside the windows of 8 requests and "
        r"a pass of 1024 rows; raise it, or lower max_model_len, max_num_seqs or max_batched_tokens"
    )
    with pytest.raises(ConfigError, match=message):
        budget(1000)
    with pytest.raises(
        ConfigError, match=r"the memory left for the cache \(900 bytes\) must be >= .*; free memory, or"
    ):
        budget(available=1000)


def test_a_context_may_be_shortened_until_it_fits() -> None:
    quarter = dataclasses.replace(USE, max_len=2048)
    found = budget(least_bytes(quarter), may_shorten=True)
    assert found.capacity.max_len == 2048
    with pytest.raises(ConfigError, match="one context of 128 tokens"):
        budget(1000, may_shorten=True)


def test_the_account_adds_up_and_prints() -> None:
    found = budget(available=1 << 30, weight_bytes=3 * MIB, workspace=Workspace(5 * MIB, 2 * MIB))
    lines = found.lines()
    assert [line.split()[0] for line in lines] == [
        "weights", "workspace", "pages", "windows", "rings", "tables", "left"
    ]  # fmt: skip
    assert lines[0] == "weights       3.0 MiB   loaded"
    assert lines[1] == "workspace     7.0 MiB   largest pass: 5.0 MiB measured, 2.0 MiB for long contexts"
    assert lines[2].endswith(f"{found.capacity.num_pages} x {size_text(UNIT.page)} a page")
    assert lines[-1].endswith("of 1.0 GiB available")


def test_an_account_without_a_measurement_says_so() -> None:
    line = budget(workspace=Workspace(None, 2 * MIB)).lines()[1]
    assert line == "workspace     2.0 MiB   not measured: 2.0 MiB for long contexts alone"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (-2048, "-2.0 KiB")]
)
def test_sizes_read_well(size: int, text: str) -> None:
    assert size_text(size) == text


def test_a_unit_counts_every_layer() -> None:
    window = 3 * 128 * 32 * 4 + 4 * (2 * 32 + 2 * 16) * 4
    page = 32 * (32 + 16) * 4 + 32 * 4
    rings = 8 * (4 * 32 + 4 * 16) * 4 + 128 * 2 * 32 * 4
    assert UnitBytes(page, window, rings) == UNIT


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


UNIFIED, OLD = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")
MEMINFO = "MemTotal: 8000000 kB\nMemAvailable: 4000000 kB\n"


def test_available_memory_is_the_systems(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "max\n"})
    assert available_bytes(CPU, root=tmp_path) == 4_000_000 * 1024


@pytest.mark.parametrize(
    ("group", "folder", "names", "droppable"),
    [
        ("0::/a/b", "sys/fs/cgroup/a/b", UNIFIED, "inactive_file"),
        ("0::/", "sys/fs/cgroup", UNIFIED, "inactive_file"),
        ("4:cpu,memory:/a", "sys/fs/cgroup/memory/a", OLD, "total_inactive_file"),
        ("4:memory:/hidden", "sys/fs/cgroup/memory", OLD, "inactive_file"),
    ],
    ids=["own group", "root group", "old own group", "old root group"],
)
def test_limits_of_control_groups_count(
    tmp_path: Path, group: str, folder: str, names: tuple[str, str], droppable: str
) -> None:
    limit, usage = names
    write(tmp_path, {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": f"9:name=systemd:/\n{group}\n",
        f"{folder}/{limit}": "1000000\n",
        f"{folder}/{usage}": "700000\n",
        f"{folder}/memory.stat": f"cache 5\n{droppable} 200000\n",
    })  # fmt: skip
    assert available_bytes(CPU, root=tmp_path) == 500_000


def test_unknown_memory_counts_as_none(tmp_path: Path) -> None:
    assert available_bytes(CPU, root=tmp_path) == 0


def test_this_machine_has_memory() -> None:
    assert available_bytes(CPU) > 1 << 20


def test_the_peak_of_a_piece_of_work_is_measured() -> None:
    def work() -> None:
        np.ones(64 * MIB, dtype=np.uint8)

    measure_peak_bytes(work, CPU)
    assert 60 * MIB <= measure_peak_bytes(work, CPU) <= 90 * MIB
    assert measure_peak_bytes(lambda: None, CPU) <= 8 * MIB


def test_a_capacity_that_nothing_fits_is_a_programmers_mistake() -> None:
    with pytest.raises(AssertionError):
        CacheCapacity(0, 1, 1, 1)
