from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.step_driver import StepDriver
from tests.worker_svc.transformer_families import FAMILIES, write_family
from worker_svc.model_runner import ModelRunner
from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.transformers_backend import TransformersModel
from worker_svc.weights.safetensors_source import SafetensorsSource
from worker_svc.weights.source import WeightsError


def load(directory: Path, dtype: torch.dtype = torch.float32, **fields: Any) -> TransformersModel:
    """Loads what `write_family` wrote; `fields` replace those of its config.json."""
    path = directory / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps(config))
    return TransformersModel.load(
        SafetensorsSource(directory), config["architectures"][0], 64, dtype, lambda *progress: None
    )


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("family", "change", "problem"),
    [
        (
            "gpt2",
            lambda tensors: tensors.pop("transformer.h.1.mlp.c_fc.weight"),
            r"missing: transformer\.h\.1\.mlp\.c_fc\.weight",
        ),
        (
            "gpt2",
            lambda tensors: tensors.update({"transformer.extra.weight": torch.zeros(2)}),
            r"surplus: transformer\.extra\.weight",
        ),
        (
            "gpt2",
            lambda tensors: tensors.update({"transformer.ln_f.weight": torch.zeros(3)}),
            r"transformer\.ln_f\.weight has shape \[3\].*wants \[64\]",
        ),
        (
            "mixtral",
            lambda tensors: [
                tensors.pop(name) for name in list(tensors) if ".0.self_attn." in name
            ],
            r"missing: .*layers\.0\.self_attn\.k_proj\.weight",
        ),
        (
            "gpt2",
            lambda tensors: tensors.update(
                {"transformer.ln_f.weight": torch.ones(64, dtype=torch.uint8)}
            ),
            r"transformer\.ln_f\.weight has type uint8, no weights",
        ),
    ],
    ids=["missing", "surplus", "shape", "several missing", "no numbers"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_by_tensor(
    family: str, change: Callable[[dict[str, torch.Tensor]], object], problem: str, tmp_path: Path
) -> None:
    write_family(tmp_path, family)
    change_tensors(tmp_path, change)
    with pytest.raises(WeightsError, match=problem):
        load(tmp_path)


def test_a_missing_expert_is_refused(tmp_path: Path) -> None:
    write_family(tmp_path, "mixtral")

    def drop_expert(tensors: dict[str, torch.Tensor]) -> None:
        names = [name for name in tensors if ".0." in name and "experts.3." in name]
        assert names
        for name in names:
            tensors.pop(name)

    change_tensors(tmp_path, drop_expert)
    with pytest.raises(WeightsError, match=r"layers\.0\.mlp\.experts"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gpt2", "transformer.h.0.attn.bias"),
        ("gpt_neox", "gpt_neox.layers.1.attention.bias"),
        ("gptj", "transformer.h.0.attn.masked_bias"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_masks_that_old_checkpoints_store_are_no_weights(
    family: str, name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    write_family(tmp_path, family)
    change_tensors(
        tmp_path, lambda tensors: tensors.update({name: torch.ones(1, 1, 4, 4, dtype=dtype)})
    )
    load(tmp_path)


def test_names_without_the_trunks_prefix_are_known(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt2")

    def drop_prefix(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    before = load(tmp_path)
    change_tensors(tmp_path, drop_prefix)
    after = load(tmp_path)
    assert torch.equal(before.trunk.wte.weight, after.trunk.wte.weight)


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_family(tmp_path, "gpt2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedModelError, match=r"install pagewire\[worker-transformers\]"):
        load(tmp_path)


def test_only_the_backend_imports_transformers(tmp_path: Path) -> None:
    write_family(tmp_path, "llama")
    script = f"""
import sys
from pagewire.engine_config import EngineConfig, ModelConfig
from worker_svc.sim.metadata import read_model_info
config = EngineConfig(model=ModelConfig(model={str(tmp_path)!r}, model_impl="transformers"))
read_model_info(config)
assert "torch" not in sys.modules and "transformers" not in sys.modules
from worker_svc.model_runner import ModelRunner
own = EngineConfig(model=ModelConfig(model={str(tmp_path)!r}))
ModelRunner(own).load(lambda *at: None)
assert "transformers" not in sys.modules
ModelRunner(config).load(lambda *at: None)
assert "transformers" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=110)


def test_tied_weights_are_one_tensor_and_count_once(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt2")
    model = load(tmp_path)
    assert model.head.lm_head.weight is model.trunk.wte.weight
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(p.nbytes for p in model.parameters()) == sum(t.nbytes for t in stored.values())


def test_weights_are_in_memory_of_their_own_and_nowhere_else(tmp_path: Path) -> None:
    write_family(tmp_path, "olmo")
    model = load(tmp_path)
    path = tmp_path / "model.safetensors"
    maps = Path("/proc/self/maps").read_text()
    assert str(path) not in maps, "a weight still lies on the file"
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert all(buffer.device.type == "cpu" for buffer in model.buffers())


def test_tensors_are_read_one_after_another_and_progress_rises(tmp_path: Path) -> None:
    write_family(tmp_path, "qwen3_moe")
    told: list[tuple[str, float]] = []
    source = SafetensorsSource(tmp_path)
    TransformersModel.load(
        source, "Qwen3MoeForCausalLM", 64, torch.float32, lambda *at: told.append(at)
    )
    fractions = [fraction for stage, fraction in told if stage == "load_weights"]
    assert len(fractions) == len(source.names()) + 2
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert told[-1] == ("probe_model", 0.0)


class CancelledError(Exception):
    pass


def test_a_load_that_is_cancelled_ends_with_the_callers_own_error(tmp_path: Path) -> None:
    write_family(tmp_path, "mixtral")

    def cancel(stage: str, fraction: float) -> None:
        if fraction > 0.3:
            raise CancelledError

    with pytest.raises(CancelledError):
        TransformersModel.load(
            SafetensorsSource(tmp_path), "MixtralForCausalLM", 64, torch.float32, cancel
        )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"architectures": ["MysteryForCausalLM"]}, "no decoder that transformers"),
        ({"model_type": "mystery"}, "'mystery'"),
        ({"model_type": None}, "None"),
        (
            {"model_type": "mystery", "auto_map": {"AutoModelForCausalLM": "evil.Model"}},
            "auto_map.*never run",
        ),
        ({"n_head": "many"}, "n_head|num_attention_heads"),
        ({"n_head": 7}, "cannot build GPT2LMHeadModel"),
    ],
    ids=str,
)
def test_a_model_that_transformers_cannot_build_is_refused(
    fields: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    write_family(tmp_path, "gpt2")
    with pytest.raises(UnsupportedModelError, match=problem):
        load(tmp_path, **fields)


def test_code_in_a_models_directory_is_never_run(tmp_path: Path) -> None:
    write_family(tmp_path, "gpt2")
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    auto_map = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    model = load(tmp_path, auto_map=auto_map)
    assert type(model.head).__module__.startswith("transformers.")


def first_logprobs(directory: Path, dtype: Any) -> dict[int, float]:
    config = ModelConfig(model=str(directory), dtype=dtype)
    runner = ModelRunner(
        EngineConfig(model=config, device=DeviceConfig(device="cpu", num_threads=1))
    )
    info = runner.load(lambda stage, fraction: None)
    assert (info.dtype, info.architecture) == (dtype, "OlmoForCausalLM")
    assert (info.num_layers, info.num_kv_heads, info.head_dim) == (2, 2, 16)
    driver = StepDriver(runner)
    driver.add(range(3, 30), SamplingParams(temperature=0.0, logprobs=20), max_tokens=1)
    columns = driver.step().logprobs
    assert columns is not None
    return dict(zip(columns.token_ids, columns.logprobs, strict=True))


def test_bfloat16_logprobs_are_near_those_of_float32(tmp_path: Path) -> None:
    reference = write_family(tmp_path, "olmo")
    for parameter in reference.parameters():
        parameter.data *= 0.2  # Narrow, so that rounding stays small.
    reference.save_pretrained(tmp_path)
    exact, rounded = first_logprobs(tmp_path, "float32"), first_logprobs(tmp_path, "bfloat16")
    common = exact.keys() & rounded.keys()
    assert len(common) >= 10
    differences = [abs(exact[token_id] - rounded[token_id]) for token_id in common]
    assert 0.0 < max(differences) < 0.1


def test_the_digest_tells_the_two_implementations_apart(tmp_path: Path) -> None:
    write_family(tmp_path, "llama")
    digests = set()
    for model_impl in ("pagewire", "transformers", "auto"):
        config = ModelConfig(model=str(tmp_path), dtype="float32", model_impl=model_impl)  # type: ignore[arg-type]
        digests.add(ModelRunner(EngineConfig(model=config)).load(lambda *at: None).weights_digest)
    assert len(digests) == 2


def test_every_row_without_a_module_of_our_own_has_a_family_here() -> None:
    from worker_svc.models.registry import MODELS

    assert {architecture for architecture, _, _ in FAMILIES.values()} == MODELS.keys()
