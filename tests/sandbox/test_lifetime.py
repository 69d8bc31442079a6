"""The clocks of a sandbox's life: what counts, what stands still, and what each verdict follows from."""

from hypothesis import given
from hypothesis import strategies as st

from benthic.sandbox.lifetime import Lifetime

STEPS = st.lists(
    st.tuples(st.sampled_from(["started", "paused", "called", "renewed"]), st.floats(0, 100, allow_nan=False)),
    max_size=30,
)


@given(STEPS)
def test_lived_time_is_the_sum_of_the_running_spans(steps: list[tuple[str, float]]) -> None:
    life, now_s, is_running, lived_s = Lifetime(), 1000.0, False, 0.0
    for step, pause_s in steps:
        before = life.lived(now_s)
        now_s += pause_s
        lived_s += pause_s if is_running else 0.0
        assert life.lived(now_s) >= before
        match step:
            case "started":
                life.started(now_s)
                is_running = True
            case "paused":
                life.paused(now_s)
                is_running = False
            case "called":
                life.called(now_s)
            case "renewed":
                life.renewed(now_s, 10)
        assert abs(life.lived(now_s) - lived_s) < 1e-6
        assert (life.running_since_s is None) is not is_running


def test_time_to_live_counts_running_time_only() -> None:
    life = Lifetime(ttl_s=10)
    life.started(0)
    life.paused(9)
    assert life.verdict(1000) == "lives"
    life.started(1000)
    assert life.verdict(1000.5) == "lives"
    assert life.verdict(1001) == "expired"


def test_idle_time_counts_from_the_last_call_and_not_while_one_runs() -> None:
    life = Lifetime(idle_ttl_s=5)
    life.started(0)
    life.called(4)
    assert life.verdict(8) == "lives"
    assert life.verdict(20, is_busy=True) == "lives"
    assert life.verdict(9) == "expired"


def test_a_lease_lapses_once_and_only_between_calls() -> None:
    life = Lifetime()
    life.started(0)
    assert life.verdict(1e9) == "lives", "without a lease nobody is waited for"
    life.renewed(0, 5)
    assert life.verdict(6, is_busy=True) == "lives"
    assert life.verdict(6) == "lapsed"
    life.paused(6)
    assert life.verdict(7) == "lives", "it is paused already"
    life.renewed(7, 5)
    life.started(7)
    assert life.verdict(8) == "lives"


def test_a_clock_that_is_set_back_takes_no_life_away() -> None:
    life = Lifetime(ttl_s=10)
    life.started(100)
    assert life.lived(50) == 0
    life.paused(50)
    assert life.lived_s == 0
