"""What was warmed before an engine is ready really ran, and is said."""

from benthic.engine.build import warm_up
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.models.transformer import Transformer


def test_b174_warming_up_says_what_it_ran_and_leaves_nothing_behind(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(max_num_seqs=4, cache_bytes=1 << 26))
    warmed = warm_up(engine)
    assert warmed == ("a prompt of 160 tokens and 2 decoded ones",)
    stats = engine.stats()
    assert (stats.num_finished, stats.num_generated_tokens) == (1, 2)
    assert (stats.num_running, stats.used_pages, stats.cached_pages) == (0, 0, 0)
