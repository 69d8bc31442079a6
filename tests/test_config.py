from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

import pytest

from benthic.config import build_config, config_leaves, parse_overrides, read_config, to_toml
from benthic.errors import ConfigError


class Policy(StrEnum):
    PLAIN = "plain"
    QUANTIZED = "quantized"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    lr: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    kind: Literal["muon", "adamw"] = "muon"

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ConfigError(f"lr is {self.lr}; it must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    length: int
    name: str = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    num_steps: int
    name: str = "run"
    seed: int | None = None
    data: Path = Path("data")
    policy: Policy = Policy.PLAIN
    enable_mtp: bool = True
    lengths: tuple[int, ...] = (128,)
    stages: tuple[Stage, ...] = ()
    mixture: dict[str, float] = field(default_factory=dict)
    optimizer: Optimizer = Optimizer()
    teacher: Optimizer | None = None


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


FULL = """
num_steps = 10
name = "a"
seed = 3
data = "/tmp/x"
policy = "quantized"
enable_mtp = false
lengths = [1, 2, 3]
stages = [{ length = 8 }, { length = 9, name = "long" }]
mixture = { add = 1, sort = 0.5 }
[optimizer]
lr = 1
betas = [0.5, 0.75]
kind = "adamw"
[teacher]
lr = 2.5
"""


def test_a_file_becomes_the_nested_dataclass_with_the_fields_types(tmp_path: Path) -> None:
    config = read_config(Run, write(tmp_path, FULL))
    assert config == Run(
        num_steps=10,
        name="a",
        seed=3,
        data=Path("/tmp/x"),
        policy=Policy.QUANTIZED,
        enable_mtp=False,
        lengths=(1, 2, 3),
        stages=(Stage(length=8), Stage(length=9, name="long")),
        mixture={"add": 1.0, "sort": 0.5},
        optimizer=Optimizer(lr=1.0, betas=(0.5, 0.75), kind="adamw"),
        teacher=Optimizer(lr=2.5),
    )
    assert isinstance(config.optimizer.lr, float)
    assert isinstance(config.policy, Policy)


def test_writing_and_reading_gives_an_equal_configuration(tmp_path: Path) -> None:
    config = read_config(Run, write(tmp_path, FULL), ['name=a "quoted" \\ name\t'])
    assert read_config(Run, write(tmp_path, to_toml(config))) == config


def test_none_survives_writing_even_where_it_is_not_the_default(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Limits:
        longest: int | None = 8
        optimizer: Optimizer | None = Optimizer()

    config = Limits(longest=None, optimizer=None)
    path = write(tmp_path, to_toml(config))
    assert read_config(Limits, path) == config
    assert read_config(Limits, path, ["optimizer.lr=2"]).optimizer == Optimizer(lr=2.0)


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("num_steps=20", "num_steps", 20),
        ("optimizer.lr=1e-3", "optimizer.lr", 1e-3),
        ("optimizer.kind=adamw", "optimizer.kind", "adamw"),
        ("optimizer.betas=[0.1, 0.2]", "optimizer.betas", (0.1, 0.2)),
        ("optimizer.betas=0.1,0.2", "optimizer.betas", (0.1, 0.2)),
        ("lengths=7", "lengths", (7,)),
        ("seed=none", "seed", None),
        ("seed=5", "seed", 5),
        ("name=17", "name", "17"),
        ("name=a=b", "name", "a=b"),
        ('name="quoted"', "name", "quoted"),
        ("data=/some/where", "data", Path("/some/where")),
        ("enable_mtp=true", "enable_mtp", True),
        ("policy=plain", "policy", Policy.PLAIN),
        ("teacher.lr=9", "teacher.lr", 9.0),
        ("mixture.add=3", "mixture", {"add": 3.0, "sort": 0.5}),
    ],
)
def test_an_override_changes_one_leaf(tmp_path: Path, override: str, name: str, value: object) -> None:
    path = write(tmp_path, FULL)
    before, after = dict(config_leaves(read_config(Run, path))), dict(config_leaves(read_config(Run, path, [override])))
    assert after.pop(name) == value
    before.pop(name)
    assert after == before


def test_the_last_override_of_a_leaf_wins() -> None:
    assert read_config(Run, None, ["num_steps=1", "num_steps=2"]).num_steps == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_step = 3", "unknown key num_step; did you mean num_steps?"),
        (
            "num_steps = 1\n[optimizer]\nlearning_rate = 1",
            r"unknown key optimizer\.learning_rate; did you mean optimizer\.\w+\? \(known here: betas, kind, lr\)",
        ),
        ("num_steps = 1\noptimiser = {}", "unknown key optimiser; did you mean optimizer?"),
        ("name = 'x'", "num_steps is missing; it must be an integer"),
        ("num_steps = 3.0", r"num_steps is 3\.0; it must be an integer"),
        ("num_steps = true", "num_steps is True; it must be an integer"),
        ("num_steps = 1\nseed = 'x'", "seed is 'x'; it must be an integer or none"),
        ("num_steps = 1\nenable_mtp = 1", "enable_mtp is 1; it must be true or false"),
        ("num_steps = 1\npolicy = 'exact'", "policy is 'exact'; it must be 'plain' or 'quantized'"),
        ("num_steps = 1\noptimizer.kind = 'sgd'", r"optimizer\.kind is 'sgd'; it must be 'muon' or 'adamw'"),
        ("num_steps = 1\noptimizer.betas = [1]", r"optimizer\.betas has 1 elements; it must have 2"),
        ("num_steps = 1\nlengths = [1, 'b']", r"lengths\[1\] is 'b'; it must be an integer"),
        ("num_steps = 1\nstages = [{}]", r"stages\[0\]\.length is missing"),
        ("num_steps = 1\noptimizer = 3", "optimizer is 3; it must be a table"),
        ("num_steps = 1\nmixture.add = 'x'", r"mixture\.add is 'x'; it must be a number"),
        ("num_steps = 1\noptimizer.lr = -1", r"optimizer: lr is -1\.0; it must be positive"),
        ("num_steps = 1\nteacher.lr = 'x'", r"teacher\.lr is 'x'; it must be a number"),
        ("num_steps = ", "is no TOML file"),
    ],
)
def test_a_mistake_is_named_with_its_value_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(Run, write(tmp_path, text))


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_config(Run, write(tmp_path, "nam = 1\nseed = 'x'\noptimizer.lr = 'y'"))
    assert [word in str(caught.value) for word in ("nam;", "seed", "optimizer.lr", "num_steps is missing")] == [
        True
    ] * 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_steps", "has no value"),
        ("num_steps.x=3", "unknown key|is a value|it must be an integer"),
        ("optimizer.lrr=3", r"did you mean optimizer\.lr"),
        ("num_steps=abc", "num_steps is 'abc'; it must be an integer"),
        ("seed=x", "seed is 'x'; it must be an integer or none"),
    ],
)
def test_a_wrong_override_is_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_config(Run, None, ["num_steps=1", override])


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/x\.toml: No such file"):
        read_config(Run, Path("/nowhere/x.toml"))


def test_command_line_words_become_overrides() -> None:
    words = ["--optimizer.lr", "1e-3", "--num-steps=3", "--enable-mtp", "--seed", "-1"]
    assert parse_overrides(words) == ["optimizer.lr=1e-3", "num_steps=3", "enable_mtp", "seed=-1"]


@pytest.mark.parametrize("words", [["stray"], ["--a", "1", "stray"], ["--"], ["-x"]])
def test_a_word_that_belongs_to_no_option_is_refused(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="unexpected argument"):
        parse_overrides(words)


def test_values_of_a_mapping_build_without_a_file() -> None:
    assert build_config(Stage, {"length": 3}) == Stage(length=3)


@dataclass(frozen=True, kw_only=True)
class Switches:
    on: bool = False
    maybe: bool | None = None
    key: str | None = None
    size: int = 1
    where: Path = Path(".")


def test_a_leaf_without_a_value_turns_a_bool_on() -> None:
    assert read_config(Switches, None, parse_overrides(["--on", "--maybe"])) == Switches(on=True, maybe=True)


@pytest.mark.parametrize("name", ["key", "size", "where"])
def test_a_leaf_without_a_value_is_refused_where_it_is_no_bool(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} has no value; it must be "):
        read_config(Switches, None, parse_overrides([f"--{name}"]))


def test_an_unknown_leaf_without_a_value_is_unknown() -> None:
    with pytest.raises(ConfigError, match="unknown key kye; did you mean key"):
        read_config(Switches, None, parse_overrides(["--kye"]))
