from pathlib import Path

from benthic.sandbox.linux import HomeState, group_name, root_tag


def test_fields_are_added_and_none_removes_one(tmp_path: Path) -> None:
    state = HomeState(tmp_path)
    assert state.load() == {}
    state.record(uid=7, cgroup="a/b")
    state.record(uid=None, pid=3)
    assert HomeState(tmp_path).load() == {"cgroup": "a/b", "pid": 3}


def test_a_file_that_is_no_state_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"uid": 7')
    assert HomeState(tmp_path).load() == {}


def test_two_state_roots_name_their_groups_apart(tmp_path: Path) -> None:
    homes = [tmp_path / name / "homes" / "0123456789ab" for name in ("one", "two")]
    assert group_name(homes[0]) == f"{root_tag(tmp_path / 'one')}/0123456789ab"
    assert group_name(homes[0]) != group_name(homes[1])
