"""What a loaded model says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pagewire.engine_config import AttentionConfig, DeviceConfig, EngineConfig, ModelConfig
from tests.worker_svc.tiny_models import longrope, write_tiny_model
from tests.worker_svc.transformer_families import phi3_longrope, write_family
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


def test_max_model_len_is_in_the_digest_where_it_chooses_the_factors_of_longrope(
    tmp_path: Path,
) -> None:
    write_tiny_model(tmp_path / "llama", **longrope(original=64))
    write_family(tmp_path / "phi3", "phi3", **phi3_longrope(64))
    for model in ("llama", "phi3"):
        short, original, long, longer = (
            digest(tmp_path / model, "torch", max_model_len=length) for length in (40, 64, 65, 200)
        )
        assert (short, long) == (original, longer)
        assert short != long


def test_max_model_len_is_in_no_other_digest(tmp_path: Path) -> None:
    write_tiny_model(tmp_path)
    short, long = (digest(tmp_path, "torch", max_model_len=length) for length in (40, 200))
    assert short == long
