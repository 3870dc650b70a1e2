from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenizer_svc.conversion_cache import Files, cache_directory, cached, entry_path

FILES = {"tokenizer.json": b"{}", "config.json": b"\x00\xff" * 1000}


class Builder:
    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> Files:
        self.num_calls += 1
        return dict(FILES)


def test_a_second_call_reads_the_first_ones_files(tmp_path: Path) -> None:
    builder = Builder()
    entry = tmp_path / "deep" / "x.zip"
    assert cached(entry, builder) == FILES
    assert cached(entry, builder) == FILES
    assert builder.num_calls == 1


@pytest.mark.parametrize("place", [0, 40, 500, -30, -1])
def test_a_damaged_entry_is_built_again(tmp_path: Path, place: int) -> None:
    entry = tmp_path / "x.zip"
    cached(entry, Builder())
    content = bytearray(entry.read_bytes())
    content[place] ^= 0xFF
    entry.write_bytes(content)
    assert cached(entry, Builder()) == FILES


@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_truncated_entry_is_built_again(tmp_path: Path, length: int) -> None:
    entry = tmp_path / "x.zip"
    cached(entry, Builder())
    entry.write_bytes(entry.read_bytes()[:length])
    builder = Builder()
    assert cached(entry, builder) == FILES
    assert cached(entry, builder) == FILES
    assert builder.num_calls == 1


def test_nothing_is_left_beside_the_entry(tmp_path: Path) -> None:
    cached(tmp_path / "x.zip", Builder())
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert cached(tmp_path / "file" / "x.zip", Builder()) == FILES


def test_an_error_of_the_builder_leaves_no_entry(tmp_path: Path) -> None:
    def fail() -> Files:
        raise ValueError("broken model")

    with pytest.raises(ValueError, match="broken model"):
        cached(tmp_path / "x.zip", fail)
    assert not list(tmp_path.iterdir())


def test_the_key_changes_with_content_time_and_version(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"one")
    os.utime(source, ns=(1, 1))
    keys = {entry_path(source, 1, tmp_path), entry_path(source, 2, tmp_path)}
    source.write_bytes(b"two")
    os.utime(source, ns=(1, 1))
    keys.add(entry_path(source, 1, tmp_path))
    os.utime(source, ns=(2, 2))
    keys.add(entry_path(source, 1, tmp_path))
    assert len(keys) == 4


def test_the_key_does_not_change_by_itself(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    source.write_bytes(b"one")
    assert entry_path(source, 1, tmp_path) == entry_path(source, 1, tmp_path)


def test_the_environment_names_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_CACHE_DIR", "/somewhere")
    assert cache_directory() == Path("/somewhere")


def test_the_default_directory_is_in_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGEWIRE_CACHE_DIR", raising=False)
    assert cache_directory() == Path.home() / ".cache" / "pagewire"
