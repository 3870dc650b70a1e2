"""Which safetensors files a Hugging Face directory has, and whether its index tells the truth.

Knows names of files and tensors, nothing of what is in them. Called by `safetensors_source`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from worker_svc.models.hf_files import read_json_object
from worker_svc.weights.source import WeightsError

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"


def read_index(directory: Path) -> Mapping[str, str] | None:
    """Tensor name to file name as the index has it; None without an index.

    Raises:
        WeightsError: The index is damaged, or leads out of its directory.
    """
    if not (directory / INDEX_FILE).is_file():
        return None
    weight_map = read_json_object(directory / INDEX_FILE).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{INDEX_FILE} is damaged: it has no weight_map")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file:
            raise WeightsError(
                f"{INDEX_FILE} says that tensor {name} is in {file!r}, which is not in "
                f"{directory.name}"
            )
    return weight_map


def weight_files(directory: Path, index: Mapping[str, str] | None) -> list[Path]:
    """The files to read, in the order of their names.

    Raises:
        WeightsError: There is none, or one that the index names is missing.
    """
    if index is not None:
        for name, file in index.items():
            if not (directory / file).is_file():
                raise WeightsError(
                    f"{INDEX_FILE} says that tensor {name} is in {file}, which is not in "
                    f"{directory.name}"
                )
        return [directory / file for file in sorted(set(index.values()))]
    if (directory / SINGLE_FILE).is_file():
        return [directory / SINGLE_FILE]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{directory} has no safetensors files")
    return files


def check_index(index: Mapping[str, str] | None, found: Mapping[str, str]) -> None:
    """Hold the index against what the files have.

    Args:
        index: Tensor name to file name, as the index says.
        found: The same, as it is.

    Raises:
        WeightsError: A tensor is not where the index says.
    """
    for name, file in (index or {}).items():
        if found.get(name) != file:
            raise WeightsError(f"{INDEX_FILE} says that tensor {name} is in {file}, which has none")
