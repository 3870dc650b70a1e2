from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pagewire.gguf import GgmlType
from worker_svc.weights.safetensors_source import SafetensorsSource
from worker_svc.weights.slots import TensorPart
from worker_svc.weights.source import WeightsError


def write(directory: Path, **files: Any) -> Path:
    (directory / "config.json").write_text("{}")
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value))
    return directory


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors_are_those_that_were_saved(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"a": torch.randn(3, 4).to(dtype), "b.weight": torch.randn(7).to(dtype)}
    save_file(tensors, write(tmp_path) / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    assert source.names() == {"a", "b.weight"}
    for name, tensor in tensors.items():
        assert torch.equal(source.tensor(name), tensor)
        assert source.tensor(name).dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "ggml_type"),
    [
        (torch.float32, GgmlType.F32),
        (torch.float16, GgmlType.F16),
        (torch.bfloat16, GgmlType.BF16),
        (torch.float64, None),
    ],
)
def test_numbers_of_a_matrix_are_blocks_of_one(
    tmp_path: Path, dtype: torch.dtype, ggml_type: GgmlType | None
) -> None:
    matrix = torch.randn(3, 4).to(dtype)
    save_file({"a": matrix, "norm": torch.ones(4)}, write(tmp_path) / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    assert source.ggml_type("a") is ggml_type
    assert source.blocks("norm") is None, "no matrix"
    for part, expected in (
        (None, matrix),
        (TensorPart(0, 1, 2), matrix[1:]),
        (TensorPart(1, 1, 2), matrix[:, 1:3]),
    ):
        blocks = source.blocks("a", part)
        if ggml_type is None:
            assert blocks is None
        else:
            assert blocks is not None and blocks.ggml_type is ggml_type
            assert blocks.blocks.shape == (*expected.shape, dtype.itemsize)
            found = torch.from_numpy(blocks.blocks.copy()).view(dtype).view(expected.shape)
            assert torch.equal(found, expected)


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    write(tmp_path, **{"model.safetensors.index": index})
    save_file({"a": torch.ones(2)}, tmp_path / "x-1.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "x-2.safetensors")
    source = SafetensorsSource(tmp_path)
    assert source.names() == {"a", "b"}
    assert source.tensor("b").tolist() == [0, 0, 0]


def test_stored_rotary_frequencies_are_no_weights(tmp_path: Path) -> None:
    tensors = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2), "a": torch.ones(1)}
    save_file(tensors, write(tmp_path) / "model.safetensors")
    assert SafetensorsSource(tmp_path).names() == {"a"}


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        ([], "has no weight_map"),
        ({}, "has no weight_map"),
        ({"a": 3}, "tensor a is in 3"),
        ({"a": "x.safetensors", "b": "x.safetensors"}, "tensor b is in x.safetensors, which has"),
        ({"a": "y.safetensors", "c": "x.safetensors"}, "tensor a is in y.safetensors, which has"),
    ],
)
def test_an_index_that_is_not_true_is_refused(
    tmp_path: Path, weight_map: object, problem: str
) -> None:
    write(tmp_path, **{"model.safetensors.index": {"weight_map": weight_map}})
    save_file({"a": torch.ones(2), "c": torch.ones(2)}, tmp_path / "x.safetensors")
    save_file({"d": torch.ones(2)}, tmp_path / "y.safetensors")
    with pytest.raises(WeightsError, match=problem):
        SafetensorsSource(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("x", "y"):
        save_file({"a": torch.ones(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(WeightsError, match=r"tensor a is in x\.safetensors and in y\.safetensors"):
        SafetensorsSource(tmp_path)


def test_a_released_tensor_can_be_read_again(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(5000), "b": torch.randn(5000)}
    save_file(tensors, write(tmp_path) / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    for name in ("a", "b", "a"):
        assert torch.equal(source.tensor(name), tensors[name])
        source.release(name)


@pytest.mark.parametrize("shard", ["missing.safetensors", "../model.safetensors"])
def test_an_index_that_names_no_file_here_is_refused(tmp_path: Path, shard: str) -> None:
    directory = tmp_path / "model"
    directory.mkdir()
    save_file({"a": torch.ones(2)}, tmp_path / "model.safetensors")
    write(directory, **{"model.safetensors.index": {"weight_map": {"a": shard}}})
    with pytest.raises(WeightsError, match=r"safetensors'?, which is not in"):
        SafetensorsSource(directory)


def test_a_directory_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no safetensors files"):
        SafetensorsSource(write(tmp_path))


def raw_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> bytes:
    offsets = [begin, end]
    return json.dumps({"bad": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (raw_file(b"{}", length=2**60), "header of"),
        (raw_file(b"not json"), "damaged"),
        (b"\1\2\3", "damaged"),
        (raw_file(b"[]"), "damaged"),
        (raw_file(b'{"bad": {"dtype": "F32"}}'), "bad"),
        (raw_file(entry("F32", [2], 0, 8), b"1234"), "tensor bad of shape"),
        (raw_file(entry("F32", [2], 0, 4), b"12345678"), "tensor bad of shape"),
        (raw_file(entry("F32", [1], -4, 0), b"12345678"), "tensor bad of shape"),
        (raw_file(entry("F32", [-1], 4, 0), b"12345678"), "tensor bad of shape"),
        (raw_file(entry("I64", [1], 0, 8), b"12345678"), "bad has unsupported type I64"),
        (
            raw_file(
                entry("F32", [2], 0, 8)[:-1]
                + b", "
                + entry("F32", [1], 4, 8)[1:].replace(b"bad", b"worse"),
                b"12345678",
            ),
            "tensors bad and worse overlap",
        ),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (write(tmp_path) / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=problem):
        SafetensorsSource(tmp_path)


def test_publishers_sampling_defaults_are_read(tmp_path: Path) -> None:
    defaults = {"do_sample": True, "temperature": 0.6, "top_k": 20, "eos_token_id": 2}
    save_file(
        {"a": torch.ones(1)}, write(tmp_path, generation_config=defaults) / "model.safetensors"
    )
    assert SafetensorsSource(tmp_path).default_sampling == {"temperature": 0.6, "top_k": 20}


def test_a_greedy_generation_config_gives_no_sampling_defaults(tmp_path: Path) -> None:
    write(tmp_path, generation_config={"temperature": 0.6})
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    assert SafetensorsSource(tmp_path).default_sampling == {}
