from __future__ import annotations

import pytest
import torch

from worker_svc.layers.rotary import RotaryEmbedding, rotate
from worker_svc.models.rope_config import RopeConfig

HEAD_DIM = 8
KINDS = {
    "default": RopeConfig(),
    "linear": RopeConfig("linear", factor=4.0),
    "dynamic": RopeConfig("dynamic", factor=4.0),
    "llama3": RopeConfig("llama3", factor=8.0, original_max_position_embeddings=64),
    "yarn": RopeConfig("yarn", factor=4.0, original_max_position_embeddings=64),
}


def tables(rope: RopeConfig, max_model_len: int) -> RotaryEmbedding:
    return RotaryEmbedding(rope, HEAD_DIM, 64, max_model_len, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_depends_on_its_position_alone(kind: str) -> None:
    short, long = tables(KINDS[kind], 100), tables(KINDS[kind], 300)
    assert torch.equal(short.cos, long.cos[:100])
    assert torch.equal(short.sin, long.sin[:100])


def test_a_rotation_keeps_lengths_and_depends_on_distance_alone() -> None:
    rotary = tables(RopeConfig(), 64)
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, HEAD_DIM), torch.randn(1, 1, HEAD_DIM)

    def score(query_position: int, key_position: int) -> float:
        rotated = [
            rotate(heads, *rotary.rows(torch.tensor([position])))
            for heads, position in ((query, query_position), (key, key_position))
        ]
        assert rotated[0].norm().item() == pytest.approx(query.norm().item(), rel=1e-5)
        return float((rotated[0] * rotated[1]).sum())

    assert score(20, 13) == pytest.approx(score(47, 40), rel=1e-4)
    assert score(20, 13) != pytest.approx(score(20, 14), rel=1e-2)


def test_dynamic_scaling_starts_behind_the_trained_context() -> None:
    plain, dynamic = tables(RopeConfig(), 128), tables(KINDS["dynamic"], 128)
    assert torch.equal(plain.cos[:64], dynamic.cos[:64])
    assert not torch.allclose(plain.cos[64:], dynamic.cos[64:])


def test_longrope_of_another_size_is_refused() -> None:
    rope = RopeConfig("longrope", short_factor=(1.0,), original_max_position_embeddings=64)
    with pytest.raises(ValueError, match="short_factor has 1 entries, needs 4"):
        tables(rope, 64)
