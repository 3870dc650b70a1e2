from __future__ import annotations

from pathlib import Path

import pytest

from worker_svc.cpu import build
from worker_svc.cpu.build import LIBRARY, is_current, sources_digest
from worker_svc.cpu.kernels import Kernels, load_library
from worker_svc.cpu.variant_check import problem_of


def test_what_is_built_is_what_the_sources_say(kernels: Kernels) -> None:
    assert is_current()
    assert kernels.lanes in (8, 16)


def test_each_variant_is_right_on_this_processor(kernels: Kernels) -> None:
    assert problem_of(kernels) is None


def test_a_library_of_other_sources_is_not_used(kernels: Kernels, tmp_path: Path) -> None:
    digest = sources_digest().encode()
    stale = tmp_path / "stale.so"
    stale.write_bytes(LIBRARY.read_bytes().replace(digest, b"0" * len(digest)))
    assert not is_current(stale)
    assert load_library(stale) is None


def test_a_library_that_is_missing_or_damaged_is_no_error(tmp_path: Path) -> None:
    assert load_library(tmp_path / "missing.so") is None
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(b"no library")
    assert load_library(damaged) is None


def test_without_a_compiler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    path = tmp_path / "lib.so"
    assert "no C++ compiler" in (build.build(path) or "")
    monkeypatch.setattr(build, "LIBRARY", path)
    monkeypatch.setattr(build, "is_current", lambda: False)
    build.main()
    assert "plain PyTorch is used" in capsys.readouterr().err


def test_a_compiler_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    assert "failed" in (build.build(path, compiler="false") or "")
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_may_have_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "sh -c 'echo was called with $# >&2; exit 1' compiler")
    problem = build.build(tmp_path / "lib.so") or ""
    assert problem.startswith("sh failed")
    assert "was called with" in problem
    assert "CXX" in (build.build(tmp_path / "lib.so", compiler="'g++") or "")


CLANG = """#!/bin/sh
if [ "$1" = --version ]; then echo "Some clang version 17"; exit; fi
for flag; do
  if [ "$flag" = -fno-loop-unroll-and-jam ]; then echo "unknown argument" >&2; exit 1; fi
  if [ "$last" = -o ]; then echo "$@" > "$flag"; fi
  last=$flag
done
"""


@pytest.mark.skipif(not build.is_supported(), reason="there are no kernels for this processor")
def test_clang_is_given_no_flags_of_gcc(tmp_path: Path) -> None:
    compiler, library = tmp_path / "clang++", tmp_path / "built" / "lib.so"
    compiler.write_text(CLANG)
    compiler.chmod(0o755)
    library.parent.mkdir()
    assert build.build(library, compiler=str(compiler)) is None
    assert "-shared" in library.read_text()


def test_a_tree_that_cannot_be_written_to_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "LIBRARY", tmp_path / "missing" / "lib.so")
    whole = build.build
    monkeypatch.setattr(build, "build", lambda: whole(build.LIBRARY))
    monkeypatch.setattr(build, "is_current", lambda: False)
    build.main()
    assert f"cannot write to {tmp_path / 'missing'}" in capsys.readouterr().err


def test_other_processors_have_no_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert "aarch64" in (build.build(tmp_path / "lib.so") or "")
    with caplog.at_level("INFO"):
        assert load_library(tmp_path / "lib.so") is None
    # Nothing that somebody could do about it.
    assert "there are none" in caplog.text and "fix" not in caplog.text
