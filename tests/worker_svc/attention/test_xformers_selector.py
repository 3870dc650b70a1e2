"""Which backend is chosen and why; refusals say what to change, before anything is imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from pagewire.engine_config import AttentionConfig, CacheConfig, EngineConfig
from worker_svc.attention import support
from worker_svc.attention.base import AttentionSpec
from worker_svc.attention.selector import choose_attention_backend, make_attention_backend
from worker_svc.attention.torch_backend import TorchAttentionBackend
from worker_svc.attention.xformers_backend import XformersAttentionBackend

Requested = Literal["auto", "torch", "xformers"]

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def make_config(requested: Requested, block_size: int = 16) -> EngineConfig:
    return EngineConfig(
        cache=CacheConfig(block_size=block_size),
        attention=AttentionConfig(attention_backend=requested),
    )


def make_spec(head_dim: int = 64, softcap: float | None = None) -> AttentionSpec:
    return AttentionSpec(4, 2, head_dim, 1.0, (None,), softcap)


@pytest.mark.parametrize(
    ("requested", "device", "dtype", "chosen"),
    [
        ("auto", CPU, torch.bfloat16, "torch"),
        ("torch", CPU, torch.bfloat16, "torch"),
        ("xformers", CPU, torch.float32, "xformers"),
        ("xformers", CPU, torch.float16, "xformers"),
        ("auto", CUDA, torch.bfloat16, "xformers"),
        ("auto", CUDA, torch.float32, "torch"),
        ("xformers", CUDA, torch.float16, "xformers"),
    ],
)
def test_the_choice(
    requested: Requested, device: torch.device, dtype: torch.dtype, chosen: str
) -> None:
    config = make_config(requested)
    assert choose_attention_backend(config, make_spec(), dtype, device).name == chosen


@pytest.mark.parametrize(
    ("device", "dtype", "block_size", "spec", "told"),
    [
        (CPU, torch.bfloat16, 16, make_spec(), "float32 or float16 on this device, not bfloat16"),
        (CUDA, torch.float32, 16, make_spec(), "bfloat16 or float16 on this device"),
        (CPU, torch.float32, 8, make_spec(), "--block-size"),
        (CPU, torch.float32, 48, make_spec(), "16 or 32 or 64 or 128 or 256"),
        (CPU, torch.float32, 16, make_spec(head_dim=576), "--attention-backend torch"),
        (CUDA, torch.float16, 16, make_spec(softcap=50.0), "--attention-backend torch"),
    ],
)
def test_what_it_cannot_run_is_refused(
    device: torch.device, dtype: torch.dtype, block_size: int, spec: AttentionSpec, told: str
) -> None:
    with pytest.raises(ValueError, match=r"^attention_backend xformers ") as caught:
        choose_attention_backend(make_config("xformers", block_size), spec, dtype, device)
    assert told in str(caught.value)


def test_on_a_cpu_the_interpreter_must_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        choose_attention_backend(make_config("xformers"), make_spec(), torch.float32, CPU)


@pytest.mark.parametrize("triton", ["3.5.1", "3.9.0"])
def test_another_triton_is_refused(monkeypatch: pytest.MonkeyPatch, triton: str) -> None:
    monkeypatch.setattr(support, "version", lambda package: triton)
    with pytest.raises(ValueError, match=rf"triton 3\.6 .* {triton} is installed"):
        choose_attention_backend(make_config("xformers"), make_spec(), torch.float32, CPU)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(support, "version", missing)
    with pytest.raises(ValueError, match="needs the package xformers"):
        choose_attention_backend(make_config("xformers"), make_spec(), torch.float32, CPU)


def test_a_model_that_caps_its_scores_falls_back_with_one_line(
    logged: list[dict[str, Any]],
) -> None:
    config, spec = make_config("xformers"), make_spec(softcap=50.0)
    name, backend = make_attention_backend(config, spec, torch.float32, CPU)
    assert (name, type(backend)) == ("torch", TorchAttentionBackend)
    assert [line["backend"] for line in logged] == ["torch"]
    assert "cannot cap attention scores" in logged[0]["reason"]


def test_on_cuda_a_model_that_caps_its_scores_falls_back_unless_xformers_was_asked_for() -> None:
    spec = make_spec(softcap=50.0)
    choice = choose_attention_backend(make_config("auto"), spec, torch.bfloat16, CUDA)
    assert choice.name == "torch"
    assert "cannot cap attention scores" in choice.reason


def test_an_old_cuda_device_gets_torch_unless_xformers_was_asked_for() -> None:
    asked, spec = make_config("xformers"), make_spec()
    choice = choose_attention_backend(make_config("auto"), spec, torch.float16, CUDA, (7, 5))
    assert choice.name == "torch"
    assert "capability 8.0, the device has 7.5" in choice.reason
    with pytest.raises(ValueError, match="use --attention-backend torch"):
        choose_attention_backend(asked, spec, torch.float16, CUDA, (7, 5))
    assert choose_attention_backend(asked, spec, torch.float16, CUDA, (8, 0)).name == "xformers"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_choice_is_made_and_logged(logged: list[dict[str, Any]]) -> None:
    name, backend = make_attention_backend(make_config("xformers"), make_spec(), torch.float32, CPU)
    assert (name, type(backend)) == ("xformers", XformersAttentionBackend)
    assert [(line["backend"], line["reason"]) for line in logged] == [
        ("xformers", "--attention-backend")
    ]


def test_xformers_is_imported_only_when_it_is_chosen() -> None:
    code = """
import sys, torch
from pagewire.engine_config import EngineConfig
from worker_svc.attention.base import AttentionSpec
from worker_svc.attention.selector import make_attention_backend
import worker_svc.attention.xformers_backend
spec = AttentionSpec(4, 2, 64, 1.0, (None,))
make_attention_backend(EngineConfig(), spec, torch.float32, torch.device("cpu"))
print([name for name in ("xformers", "triton") if name in sys.modules])
"""
    root = Path(__file__).resolve().parents[3]
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100
    )
    assert result.stdout.splitlines()[-1:] == ["[]"], result.stderr


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Log lines of the selector."""
    import structlog
    from structlog.testing import LogCapture

    from worker_svc.attention import selector

    capture = LogCapture()
    logger = structlog.wrap_logger(None, processors=[capture])
    monkeypatch.setattr(selector, "log", logger)
    yield capture.entries
