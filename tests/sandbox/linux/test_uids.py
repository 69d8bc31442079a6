from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benthic.sandbox.linux import UidPool


def pool(tmp_path: Path, num_ranges: int = 8) -> UidPool:
    return UidPool(folder=tmp_path / "uids", num_ranges=num_ranges)


def home(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / "root" / "homes" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_no_two_sandboxes_get_the_same_range_even_when_claimed_at_once(tmp_path: Path) -> None:
    uids = pool(tmp_path, 64)
    with ThreadPoolExecutor(8) as threads:
        claimed = list(threads.map(lambda i: uids.acquire(home(tmp_path, str(i))), range(64)))
    assert len(set(claimed)) == 64
    assert all(uid >= uids.first and (uid - uids.first) % uids.size == 0 for uid in claimed)


def test_a_pool_without_a_free_range_says_so_and_a_released_one_is_claimed_again(tmp_path: Path) -> None:
    uids = pool(tmp_path, 2)
    first = uids.acquire(home(tmp_path, "a"))
    other = uids.acquire(home(tmp_path, "b"))
    with pytest.raises(LookupError, match="all 2 ranges"):
        uids.acquire(home(tmp_path, "c"))
    uids.release(home(tmp_path, "a"), other)
    assert len(uids.owners()) == 2, "what is another's by now stays"
    uids.release(home(tmp_path, "a"), first)
    assert uids.acquire(home(tmp_path, "c")) == first
    uids.release(home(tmp_path, "c"))
    assert list(uids.owners()) == [other]


def test_claims_name_their_owner_and_are_swept_when_its_home_is_gone(tmp_path: Path) -> None:
    uids = pool(tmp_path)
    lost, kept = home(tmp_path, "lost"), home(tmp_path, "kept")
    uid = uids.acquire(lost)
    other = uids.acquire(kept)
    assert uids.owners() == {uid: lost, other: kept}
    lost.rmdir()
    assert uids.sweep(tmp_path / "elsewhere") == [], "another state root's claims are not ours to sweep"
    assert uids.sweep(tmp_path / "root") == [uid]
    assert uids.owners() == {other: kept}


def test_no_claim_is_ever_the_root_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        UidPool(folder=tmp_path, first=0)


def test_a_claim_is_passed_on_whole_and_by_its_owner_alone(tmp_path: Path) -> None:
    uids, old, new = pool(tmp_path), tmp_path / "old", tmp_path / "new"
    uid = uids.acquire(old)
    (tmp_path / "uids" / f".{uid}").symlink_to(tmp_path / "left by one that died")
    uids.move(uid, old, new)
    assert uids.owners() == {uid: new}
    assert [path.name for path in (tmp_path / "uids").iterdir()] == [str(uid)]
    with pytest.raises(LookupError, match="is not claimed for"):
        uids.move(uid, old, new)
    uids.release(new, uid)
    assert uids.owners() == {}
