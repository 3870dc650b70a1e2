import json
from pathlib import Path

import pytest

from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.hf_files import read_model_config


def write(directory: Path, **files: object) -> Path:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_tokens_that_only_the_generation_config_names_end_a_sequence_too(tmp_path: Path) -> None:
    directory = write(
        tmp_path, config={"eos_token_id": 2}, generation_config={"eos_token_id": [2, 7, 9]}
    )
    assert read_model_config(directory)["eos_token_id"] == [2, 7, 9]


def test_a_model_without_a_generation_config_ends_as_its_config_says(tmp_path: Path) -> None:
    assert read_model_config(write(tmp_path, config={"eos_token_id": 5}))["eos_token_id"] == [5]


def test_a_token_id_of_another_type_is_refused(tmp_path: Path) -> None:
    directory = write(tmp_path, config={}, generation_config={"eos_token_id": "</s>"})
    with pytest.raises(UnsupportedModelError, match="not a token id"):
        read_model_config(directory)


def test_a_file_that_is_no_json_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        read_model_config(tmp_path)
