"""Tests of what `pagewire serve` says of packages that are not there."""

from __future__ import annotations

import importlib.util

import pytest

from pagewire.cli.serve import serve
from pagewire.cli.stack_config import ServeConfig
from pagewire.kit.config import ConfigError, load_config

find_spec = importlib.util.find_spec


@pytest.fixture
def without_smg_proto(monkeypatch):
    monkeypatch.setattr(
        "pagewire.cli.installed.find_spec",
        lambda name: None if name == "smg_grpc_proto" else find_spec(name),
    )


async def test_a_missing_package_is_found_before_anything_starts(without_smg_proto):
    config = load_config(ServeConfig, prog="x", argv=["--vllm-grpc-port=0"], env={})
    with pytest.raises(
        ConfigError, match=r"--vllm-grpc-port needs .*pip install 'pagewire\[smg\]'"
    ):
        await serve(config)
