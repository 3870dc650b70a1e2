"""What a loaded model says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagewire.engine_config import AttentionConfig, DeviceConfig, EngineConfig, ModelConfig
from tests.worker_svc.tiny_models import write_tiny_model
from worker_svc.model_runner import ModelRunner


def digest(directory: Path, backend: Any, **model: Any) -> str:
    config = EngineConfig(
        model=ModelConfig(model=str(directory), dtype="float32", **model),
        attention=AttentionConfig(attention_backend=backend),
        device=DeviceConfig(device="cpu", num_threads=1),
    )
    return ModelRunner(config).load(lambda stage, fraction: None).weights_digest


def test_what_adds_up_in_another_order_has_another_digest(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    plain = digest(tmp_path, "torch")
    assert plain == digest(tmp_path, "auto")  # on a CPU `auto` is torch for such a model
    assert plain != digest(tmp_path, "torch", batch_invariant=True)
