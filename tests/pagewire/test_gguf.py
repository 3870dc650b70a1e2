from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagewire.gguf import GgmlType, GgufError, read_gguf
from pagewire.model_source import resolve_model
from tests.pagewire.gguf_builder import (
    ARRAY,
    BOOL,
    F32,
    I32,
    STRING,
    U8,
    U32,
    U64,
    GgufBuilder,
    array,
    number,
    numbers,
    string,
    strings,
)


def small() -> GgufBuilder:
    builder = GgufBuilder().text("general.architecture", "llama")
    builder.key("llama.block_count", U32, number(U32, 7))
    builder.key("llama.eps", F32, number(F32, 0.5))
    builder.key("flag", BOOL, number(BOOL, True))
    builder.key("tokens", ARRAY, strings(["a", "", "\u00e9\u00df\U0001f600"]))
    builder.key("types", ARRAY, numbers(I32, [1, -3, 6]))
    builder.tensor("w", (32, 2), GgmlType.Q8_0, 0).tensor("b", (3,), GgmlType.F32, 96)
    builder.data = bytes(range(68)) + b"\0" * 28 + struct.pack("<3f", 1, 2, 3)
    return builder


def refuse(builder: GgufBuilder, tmp_path: Path, match: str) -> None:
    with pytest.raises(GgufError, match=match):
        read_gguf(builder.write(tmp_path / "x.gguf"), keys=("tokens", "types"))


def test_scalars_are_read(tmp_path: Path) -> None:
    file = read_gguf(small().write(tmp_path / "x.gguf"))
    assert file.metadata == {
        "general.architecture": "llama",
        "llama.block_count": 7,
        "llama.eps": 0.5,
        "flag": True,
    }


def test_arrays_are_read_only_when_asked_for(tmp_path: Path) -> None:
    file = read_gguf(small().write(tmp_path / "x.gguf"), keys=("tokens",))
    assert file.metadata["tokens"] == ["a", "", "\u00e9\u00df\U0001f600"]
    assert "types" not in file.metadata


def test_arrays_of_numbers_are_numpy_arrays(tmp_path: Path) -> None:
    types = read_gguf(small().write(tmp_path / "x.gguf"), keys=("types",)).metadata["types"]
    assert isinstance(types, np.ndarray)
    assert types.dtype == np.int32
    assert types.tolist() == [1, -3, 6]


def test_nested_arrays_are_lists(tmp_path: Path) -> None:
    builder = GgufBuilder()
    builder.key("n", ARRAY, array(ARRAY, [numbers(U8, [1]), strings(["x", "y"])]))
    value = read_gguf(builder.write(tmp_path / "x.gguf"), keys=("n",)).metadata["n"]
    assert isinstance(value, list)
    assert [list(item) for item in value] == [[1], ["x", "y"]]  # type: ignore[call-overload]


def test_nested_arrays_can_be_skipped(tmp_path: Path) -> None:
    builder = GgufBuilder()
    builder.key("n", ARRAY, array(ARRAY, [numbers(U8, [1]), strings(["x", "y"])]))
    builder.text("after", "there")
    assert read_gguf(builder.write(tmp_path / "x.gguf")).metadata == {"after": "there"}


def test_tensors_have_numpys_shape_and_their_bytes(tmp_path: Path) -> None:
    file = read_gguf(small().write(tmp_path / "x.gguf"))
    assert file.tensors["w"].shape == (2, 32)
    assert bytes(file.tensor_bytes(file.tensors["w"])) == bytes(range(68))
    assert file.tensor_bytes(file.tensors["b"]).view("<f4").tolist() == [1, 2, 3]


def test_tensor_bytes_cannot_be_written(tmp_path: Path) -> None:
    file = read_gguf(small().write(tmp_path / "x.gguf"))
    with pytest.raises(ValueError, match="read-only"):
        file.tensor_bytes(file.tensors["w"])[0] = 1


def test_another_alignment_is_followed(tmp_path: Path) -> None:
    builder = small().key("general.alignment", U32, number(U32, 8))
    builder.alignment = 8
    file = read_gguf(builder.write(tmp_path / "x.gguf"))
    assert bytes(file.tensor_bytes(file.tensors["w"])) == bytes(range(68))


def test_the_embedded_model_is_read() -> None:
    file = read_gguf(resolve_model("smollm2").path)
    assert file.metadata["llama.block_count"] == 30
    assert file.tensors["token_embd.weight"].shape == (49152, 576)
    end = max(info.offset + info.n_bytes for info in file.tensors.values())
    assert end == len(file.data)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"")
    with pytest.raises(GgufError, match="too short"):
        read_gguf(tmp_path / "x.gguf")


def test_a_wrong_magic_is_refused(tmp_path: Path) -> None:
    builder = small()
    builder.magic = b"GGML"
    refuse(builder, tmp_path, "magic")


@pytest.mark.parametrize("version", [0, 1, 4, 0x03000000])
def test_an_unknown_version_is_refused(tmp_path: Path, version: int) -> None:
    builder = small()
    builder.version = version
    refuse(builder, tmp_path, "not supported")


@pytest.mark.parametrize("count", [10**4, 2**32, 2**64 - 1])
def test_a_huge_number_of_keys_is_refused(tmp_path: Path, count: int) -> None:
    builder = small()
    builder.num_keys = count
    refuse(builder, tmp_path, "too short for")


@pytest.mark.parametrize("count", [10**4, 2**32, 2**64 - 1])
def test_a_huge_number_of_tensors_is_refused(tmp_path: Path, count: int) -> None:
    builder = small()
    builder.num_tensors = count
    refuse(builder, tmp_path, "too short for")


@pytest.mark.parametrize("count", [10**4, 2**32, 2**64 - 1])
@pytest.mark.parametrize("item_type", [STRING, U64, ARRAY])
@pytest.mark.parametrize("key", ["tokens", "skipped"])
def test_a_huge_array_is_refused(tmp_path: Path, key: str, item_type: int, count: int) -> None:
    builder = GgufBuilder().key(key, ARRAY, array(item_type, [], count))
    refuse(builder, tmp_path, "too short for")


@pytest.mark.parametrize("length", [10**4, 2**63, 2**64 - 1])
@pytest.mark.parametrize("key", ["tokens", "skipped"])
def test_a_huge_string_in_an_array_is_refused(tmp_path: Path, key: str, length: int) -> None:
    value = array(STRING, [struct.pack("<Q", length), string("x")])
    refuse(GgufBuilder().key(key, ARRAY, value), tmp_path, "truncated")


def test_a_huge_string_is_refused(tmp_path: Path) -> None:
    refuse(GgufBuilder().key("k", STRING, struct.pack("<Q", 2**62)), tmp_path, "truncated")


def test_a_huge_key_is_refused(tmp_path: Path) -> None:
    builder = GgufBuilder().key(b"k" * 70_000, U8, number(U8, 1))
    refuse(builder, tmp_path, "name of 70000 bytes")


@pytest.mark.parametrize("key", ["tokens", "skipped"])
def test_deep_nesting_is_refused(tmp_path: Path, key: str) -> None:
    value = numbers(U8, [1])
    for _ in range(2_000):
        value = array(ARRAY, [value])
    refuse(GgufBuilder().key(key, ARRAY, value), tmp_path, "nested")


def test_an_unknown_value_type_is_refused(tmp_path: Path) -> None:
    refuse(GgufBuilder().key("k", 99, b"\0" * 8), tmp_path, "unknown metadata type 99")


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    refuse(GgufBuilder().text("k", "1").text("k", "2"), tmp_path, "twice")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    refuse(GgufBuilder().key("k", STRING, string(b"\xff\xfe")), tmp_path, "not UTF-8")


@pytest.mark.parametrize("alignment", [0, 3, 2**31])
def test_a_bad_alignment_is_refused(tmp_path: Path, alignment: int) -> None:
    builder = small().key("general.alignment", U32, number(U32, alignment))
    refuse(builder, tmp_path, "alignment")


def test_an_alignment_that_is_no_number_is_refused(tmp_path: Path) -> None:
    refuse(small().text("general.alignment", "32"), tmp_path, "alignment")


def test_a_tensor_behind_the_end_is_refused(tmp_path: Path) -> None:
    refuse(small().tensor("x", (32,), GgmlType.F32, 96 + 32), tmp_path, "behind the end")


@pytest.mark.parametrize("offset", [2**40, 2**64 - 32])
def test_a_tensor_far_outside_is_refused(tmp_path: Path, offset: int) -> None:
    refuse(small().tensor("x", (1,), GgmlType.F32, offset), tmp_path, "behind the end")


def test_a_tensor_with_an_overflowing_size_is_refused(tmp_path: Path) -> None:
    builder = small().tensor("x", (2**32, 2**32, 2**32), GgmlType.F32, 0)
    refuse(builder, tmp_path, "behind the end")


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    refuse(small().tensor("x", (1,), GgmlType.F32, 32), tmp_path, "overlap")


def test_a_tensor_that_is_not_aligned_is_refused(tmp_path: Path) -> None:
    refuse(small().tensor("x", (1,), GgmlType.F32, 100), tmp_path, "aligned")


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    refuse(small().tensor("w", (1,), GgmlType.F32, 128), tmp_path, "twice")


def test_too_many_dimensions_are_refused(tmp_path: Path) -> None:
    refuse(small().tensor("x", (1,) * 5, GgmlType.F32, 0), tmp_path, "5 dimensions")


def test_an_empty_dimension_is_refused(tmp_path: Path) -> None:
    refuse(small().tensor("x", (0, 4), GgmlType.F32, 0), tmp_path, "empty dimension")


def test_an_unknown_tensor_type_is_refused(tmp_path: Path) -> None:
    refuse(small().tensor("x", (32,), 4, 0), tmp_path, "unknown type 4")


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    refuse(small().tensor("x", (33,), GgmlType.Q8_0, 0), tmp_path, "no whole number")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = small().bytes()
    for length in range(len(whole)):
        (tmp_path / "x.gguf").write_bytes(whole[:length])
        with pytest.raises(GgufError):
            read_gguf(tmp_path / "x.gguf", keys=("tokens",))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(place=st.integers(0, len(small().bytes()) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused_cleanly(tmp_path: Path, place: int, value: int) -> None:
    content = bytearray(small().bytes())
    content[place] = value
    (tmp_path / "x.gguf").write_bytes(content)
    try:
        file = read_gguf(tmp_path / "x.gguf", keys=("tokens", "types"))
    except GgufError:
        return
    for info in file.tensors.values():
        assert len(file.tensor_bytes(info)) == info.n_bytes
