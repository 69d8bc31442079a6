import json
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import ConfigError
from benthic.text import PromptSettings, read_prompt_settings


def write(folder: Path, **files: Any) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def test_a_folder_without_settings_has_those_of_the_april_releases(tmp_path: Path) -> None:
    assert read_prompt_settings(tmp_path) == PromptSettings()
    assert PromptSettings().prompt_dialect == "2026-04"
    assert PromptSettings().default_thinking


def test_the_refreshed_releases_are_known_by_their_draft_head(tmp_path: Path) -> None:
    assert read_prompt_settings(write(tmp_path, config={"dspark_block_size": 8})).prompt_dialect == "recipe"


def test_the_file_beats_the_detection(tmp_path: Path) -> None:
    folder = write(tmp_path, config={"dspark_block_size": 8}, benthic={"prompt_dialect": "2026-04"})
    assert read_prompt_settings(folder).prompt_dialect == "2026-04"


def test_all_fields_are_read(tmp_path: Path) -> None:
    fields = {
        "prompt_dialect": "recipe",
        "default_thinking": False,
        "default_temperature": 0.5,
        "default_top_p": 0.9,
    }
    assert read_prompt_settings(write(tmp_path, benthic=fields)) == PromptSettings(**fields)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"promt_dialect": "recipe"}', "did you mean 'prompt_dialect'"),
        ('{"xyz": 1}', "known fields: 'prompt_dialect'"),
        ('{"prompt_dialect": "may"}', "must be one of '2026-04', 'recipe'"),
        ('{"default_thinking": 1}', "must be true or false"),
        ('{"default_temperature": 3}', r"must be a number in \[0.0, 2.0\]"),
        ('{"default_temperature": true}', "must be a number"),
        ('{"default_top_p": 0}', "must be in"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_prompt_settings(write(tmp_path, benthic=text))


def test_the_bundled_model_adds_no_effort_text_by_default(tiny_folder: Path) -> None:
    assert read_prompt_settings(tiny_folder).prompt_dialect == "2026-04"
