"""Where each known failure of systems like this one has its test: the kinds loading, robustness and ux.

Other kinds name their failures in their own tests. An entry is a file and a test in it; several where one does not do.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
KNOWN: dict[str, tuple[str, ...]] = {
    # loading
    "B125 exponent bytes taken for numbers": (
        "checkpoint/test_broken_files.py::test_exponent_bytes_stored_as_numbers_are_noticed",
        "checkpoint/test_round_trip.py::test_official_weights_survive_wider_formats_bit_for_bit",
    ),
    "B127 names of scales differ between formats": (
        "checkpoint/test_round_trip.py::test_other_spellings_of_names_and_scales_load_to_the_same_values",
        "checkpoint/test_table.py::test_every_spelling_of_every_tensor_leads_to_its_official_name",
    ),
    "B128 a format guessed from the size of an item": (
        "checkpoint/test_round_trip.py::test_a_mixed_checkpoint_decodes_as_an_independent_decoder_does",
    ),
    "B129 FP4 recast to FP8 with loss": (
        "checkpoint/test_round_trip.py::test_fp4_experts_become_fp8_without_a_change_of_value",
    ),
    "B130 a converter that leaves tensors out": (
        "checkpoint/test_broken_files.py::test_a_converter_refuses_as_the_loader_does_and_writes_nothing",
        "checkpoint/test_round_trip.py::test_every_tensor_of_the_module_is_in_the_table",
    ),
    "B131 dialects of rope in a config": (
        "checkpoint/test_model_config.py::test_rope_parameters_flat_nested_and_rope_scaling_agree",
        "checkpoint/test_model_config.py::test_an_unknown_key_is_reported_with_its_neighbour_and_not_fatal",
    ),
    "B132 a prefix of names, and scales that are not applied": (
        "checkpoint/test_round_trip.py::test_other_spellings_of_names_and_scales_load_to_the_same_values",
    ),
    # robustness
    "B171 batches padded to a captured size": (
        "engine/test_row_passes.py::test_random_requests_get_the_bits_that_they_get_alone",
        "engine/test_row_passes.py::test_a_pass_takes_the_least_bucket_that_holds_it",
    ),
    "B172 stale ids in tables of contexts of several lengths": (
        "cache/test_row_context.py::test_rows_get_the_places_that_the_host_gives_them",
        "cache/test_row_context.py::test_a_row_without_a_page_or_window_writes_nowhere",
    ),
    "B173 identical prompts at once": (
        "exactness/test_schedules.py::test_identical_prompts_at_once_get_identical_answers",
    ),
    "B174 a warm-up that never runs": (
        "engine/test_start_report.py::test_b174_warming_up_says_what_it_ran_and_leaves_nothing_behind",
        "engine/test_row_passes.py::test_warming_up_captures_every_bucket_once_and_says_so",
    ),
    "B176 an empty prompt": (
        "server/test_known_robustness.py::test_b176_nothing_to_go_on_from_is_refused_and_kills_nobody",
    ),
    "B177 a dead engine that stalls its trainer or stays behind": (
        "engine/test_process.py::test_a_new_child_takes_over_the_pause_and_the_latest_weights",
        "engine/test_process_weights.py::test_whatever_becomes_of_the_file_its_weights_are_loaded_again",
        "journeys/test_serve.py::test_a_server_that_is_killed_leaves_no_engine_behind",
    ),
    "B178 a stream that ends without a word": (
        "server/test_late_errors.py::test_an_error_on_the_way_has_a_status_and_a_stream_the_same_code",
    ),
    "B179 settings that cannot work": (
        "engine/test_engine.py::test_contradictory_settings_are_refused",
        "engine/test_drafting.py::test_a_model_without_prediction_blocks_cannot_draft_with_them",
    ),
    # ux
    "B187 all tokens go into reasoning": (
        "journeys/test_llm.py::test_a_thinking_budget_ends_the_reasoning_and_lets_the_answer_follow",
        "server/test_playground.py::test_an_answer_cut_off_while_thinking_says_what_helps",
    ),
    "B189 a 404 without a hint": (
        "server/test_documented_routes.py::test_b189_the_page_lists_the_routes_that_there_are",
        "server/test_documented_routes.py::test_b189_a_wrong_path_is_answered_with_the_right_ones",
    ),
    "B190 a log that contradicts itself": (
        "server/test_readiness.py::test_b190_the_summary_has_one_line_a_feature_with_its_state_and_the_reason",
    ),
    "B191 an answer inside the folded reasoning": (
        "server/test_playground.py::test_an_answer_streams_with_its_reasoning_folded",
        "server/test_transcripts.py::test_a_reply_is_the_same_whole_and_streamed_in_every_protocol_for_every_split_of_its_markers",
    ),
    "B192 a cache that never hits": (
        "server/test_cache_watch.py::test_a_server_whose_cache_is_off_warns_within_20_requests",
        "server/test_metrics.py::test_b192_lookups_hits_and_the_reasons_for_misses_are_counted",
    ),
}


@cache
def names_in(file: str) -> frozenset[str]:
    nodes = ast.walk(ast.parse((TESTS / file).read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("failure", KNOWN)
def test_each_known_failure_has_the_tests_that_the_table_names(failure: str) -> None:
    for entry in KNOWN[failure]:
        file, _, name = entry.partition("::")
        assert name in names_in(file), entry
