import io
import json
import logging
from collections.abc import Iterator

import pytest

from benthic.telemetry import Metrics, configure_logging, log


@pytest.fixture
def benthic_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("benthic")
    before = (logger.handlers, logger.level, logger.propagate)
    yield logging.getLogger("benthic.engine")
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_counters_add_up_by_name_and_labels() -> None:
    metrics = Metrics()
    metrics.count("requests", kind="chat")
    metrics.count("requests", 2, kind="chat")
    metrics.count("requests", kind="completion")
    assert metrics.snapshot() == {'requests{kind="chat"}': 3, 'requests{kind="completion"}': 1}


def test_two_metrics_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.count("requests")
    assert second.snapshot() == {}


def test_a_gauge_keeps_the_last_value() -> None:
    metrics = Metrics()
    metrics.gauge("running", 3)
    metrics.gauge("running", 1)
    assert metrics.snapshot() == {"running": 1}


def test_a_timer_observes_the_seconds_of_its_block_even_when_it_fails() -> None:
    ticks = iter([10.0, 12.0, 20.0, 23.0])
    metrics = Metrics(clock=lambda: next(ticks))
    with metrics.timer("step_s"):
        pass
    with pytest.raises(RuntimeError), metrics.timer("step_s"):
        raise RuntimeError
    assert metrics.snapshot() == {"step_s_count": 2, "step_s_sum": 5.0}


def test_quantiles_are_the_upper_bounds_of_their_buckets() -> None:
    metrics = Metrics()
    for value in (0.5, 1.5, 1.6, 9.0):
        metrics.observe("wait_s", value, bounds=(1.0, 2.0))
    histogram = metrics.histograms["wait_s", ()]
    assert [histogram.quantile(q) for q in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1.0, 1.0, 2.0, 2.0, float("inf")]
    assert histogram.mean == pytest.approx(3.15)


def test_a_json_line_carries_message_fields_and_traceback(benthic_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging(enable_json=True, stream=stream)
    log(benthic_logger, logging.INFO, "admitted request", id="r1", prompt_len=20)
    try:
        raise ValueError("broken")
    except ValueError:
        benthic_logger.exception("step failed")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["message"], first["id"], first["prompt_len"]) == ("admitted request", "r1", 20)
    assert (first["level"], first["logger"]) == ("info", "benthic.engine")
    assert "ValueError: broken" in second["exception"]


def test_a_text_line_shows_fields_and_the_level_filters(benthic_logger: logging.Logger) -> None:
    stream = io.StringIO()
    configure_logging(level="warning", stream=stream)
    log(benthic_logger, logging.INFO, "hidden")
    log(benthic_logger, logging.WARNING, "pool is full", used=8)
    assert stream.getvalue().endswith("WARNING engine: pool is full  used=8\n")
    assert "hidden" not in stream.getvalue()
