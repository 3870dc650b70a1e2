"""Parts of tensors: what a rank reads of a checkpoint, and that it reads nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.gguf import GgmlType
from pagewire.model_source import resolve_model
from tests.worker_svc import tiny_models
from tests.worker_svc.tiny_gguf import write_gguf
from worker_svc.models.llama import LlamaForCausalLM
from worker_svc.models.shape import read_shape
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.parallel.layout import RankLayout
from worker_svc.weights.dequantize import dequantize
from worker_svc.weights.gguf_parts import dequantize_part
from worker_svc.weights.load import load_weights
from worker_svc.weights.slots import TensorPart, WeightSlot
from worker_svc.weights.source import WeightsError, WeightSource, open_weights

ROWS, COLUMNS = 6, 96


class RecordingSource:
    """A checkpoint that counts the numbers that were asked of it, by tensor."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self.num_read: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def tensor(self, name: str) -> torch.Tensor:
        return self._count(name, self._source.tensor(name))

    def part(self, name: str, part: TensorPart) -> torch.Tensor:
        return self._count(name, self._source.part(name, part))

    def _count(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        self.num_read[name] = self.num_read.get(name, 0) + tensor.numel()
        return tensor


def load_rank(path: Path, rank: int, tp_size: int, pp_size: int) -> tuple[Any, RecordingSource]:
    source = RecordingSource(open_weights(resolve_model(str(path), None)))
    shape: Any = read_shape(source.config, "auto")
    groups = ParallelGroups(RankLayout(rank, tp_size, pp_size))
    model = LlamaForCausalLM(shape, 64, torch.float32, groups)
    load_weights(model.weight_slots(), source, lambda *_: None, model.tensor_names())  # type: ignore[arg-type]
    return model, source


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_each_rank_reads_its_part_and_all_parts_make_the_whole(tmp_path: Path, kind: str) -> None:
    model = tiny_models.write_tiny_model(tmp_path / "hf", num_attention_heads=4)
    path = tmp_path / "hf"
    if kind == "gguf":
        path = tmp_path / "tiny.gguf"
        write_gguf(path, model, "llama")
    whole = {name: tensor.numel() for name, tensor in model.state_dict().items()}
    read = [load_rank(path, rank, 2, 2)[1].num_read for rank in range(4)]
    for name, numel in whole.items():
        counts = [numbers.get(name, 0) for numbers in read]
        is_norm = "norm" in name
        holders = [count for count in counts if count]
        # Two ranks of one stage have it: norms whole, all else in halves.
        assert holders == [numel if is_norm else numel // 2] * 2, name


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_rank_has_the_rows_and_columns_of_its_place(tmp_path: Path, kind: str) -> None:
    hf = tiny_models.write_tiny_model(tmp_path / "hf")
    path = tmp_path / "hf"
    if kind == "gguf":
        path = tmp_path / "tiny.gguf"
        write_gguf(path, hf, "llama")
    model, _ = load_rank(path, 1, 2, 1)
    layer, state = model.layers[1], hf.state_dict()
    prefix = "model.layers.1"
    query, key, value = layer.self_attn.qkv_proj.weight.split((32, 16, 16))
    assert torch.equal(query, state[f"{prefix}.self_attn.q_proj.weight"][32:])
    assert torch.equal(key, state[f"{prefix}.self_attn.k_proj.weight"][16:])
    assert torch.equal(value, state[f"{prefix}.self_attn.v_proj.weight"][16:])
    down = state[f"{prefix}.mlp.down_proj.weight"]
    assert torch.equal(layer.mlp.down_proj.weight, down[:, 48:])
    assert torch.equal(model.embed_tokens, state["model.embed_tokens.weight"][80:])


def test_a_tensor_of_another_shape_is_named_with_its_own(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    source = open_weights(resolve_model(str(tmp_path), None))
    name = "model.layers.0.mlp.up_proj.weight"
    slot = WeightSlot(torch.empty(50, 64), TensorPart(0, 0, 50), total=100)
    with pytest.raises(WeightsError, match=r"up_proj.*has shape \[96, 64\].*wants \[100, 64\]"):
        load_weights({name: slot}, source, lambda *_: None, source.names())


@pytest.mark.parametrize("ggml_type", [GgmlType.F32, GgmlType.F16, GgmlType.Q8_0, GgmlType.Q4_1])
@pytest.mark.parametrize(
    "part",
    [TensorPart(0, 2, 3), TensorPart(1, 32, 64), TensorPart(1, 20, 30), TensorPart(1, 95, 1)],
    ids=["rows", "blocks of columns", "columns across blocks", "last column"],
)
def test_a_part_is_that_part_of_the_whole(ggml_type: GgmlType, part: TensorPart) -> None:
    num_bytes = ROWS * COLUMNS // ggml_type.block_weights * ggml_type.block_bytes
    data = np.random.default_rng(0).integers(0, 60, num_bytes, dtype=np.uint8)
    whole = dequantize(data, ggml_type, "t").reshape(ROWS, COLUMNS)
    expected = whole.take(range(part.start, part.start + part.size), axis=part.dim)
    found = dequantize_part(data, (ROWS, COLUMNS), ggml_type, "t", part)
    assert np.array_equal(found, expected)


def test_a_part_of_a_bias_is_that_part() -> None:
    data = np.arange(10, dtype="<f4").view(np.uint8)
    found = dequantize_part(data, (10,), GgmlType.F32, "t", TensorPart(0, 4, 3))
    assert found.tolist() == [4.0, 5.0, 6.0]


def test_blocks_that_lie_across_rows_still_give_the_part() -> None:
    data = np.random.default_rng(1).integers(0, 60, 3 * 34, dtype=np.uint8)
    whole = dequantize(data, GgmlType.Q8_0, "t").reshape(2, 48)
    found = dequantize_part(data, (2, 48), GgmlType.Q8_0, "t", TensorPart(1, 8, 30))
    assert np.array_equal(found, whole[:, 8:38])
