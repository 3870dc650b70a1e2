"""GPUs and models that a simulation can name, with public figures.

Data and lookups only; `step_time` makes time of it. GPU figures are the dense BF16 tensor rate, the
memory bandwidth and the memory size of NVIDIA's data sheets (H100 SXM5, H200 SXM, A100 80GB SXM4,
L4; where a sheet gives the rate with sparsity, half of it). Model shapes are those of the models'
published `config.json`, parameter counts those of their model cards.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagewire.engine_config import check

GB = 10**9


@dataclass(frozen=True, slots=True)
class Gpu:
    """What limits a step on one GPU."""

    flops_per_s: float
    """Dense BF16 tensor operations."""
    bytes_per_s: float
    """Memory bandwidth."""
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides a model's step time and KV size."""

    num_parameters: float
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    """Longest sequence that the model was made for, in tokens."""


GPUS = {
    "h200": Gpu(989e12, 4.8e12, 141 * GB),
    "h100": Gpu(989e12, 3.35e12, 80 * GB),
    "a100": Gpu(312e12, 2.039e12, 80 * GB),
    "l4": Gpu(121e12, 0.3e12, 24 * GB),
}

MODELS = {
    "smollm2-135m": ModelShape(0.1345e9, 30, 9, 3, 64, 8192),
    "llama-3.2-1b": ModelShape(1.24e9, 16, 32, 8, 64, 131_072),
    "llama-3.1-8b": ModelShape(8.03e9, 32, 32, 8, 128, 131_072),
    "llama-3.1-70b": ModelShape(70.6e9, 80, 64, 8, 128, 131_072),
    "mistral-7b": ModelShape(7.25e9, 32, 32, 8, 128, 32_768),
    "qwen3-8b": ModelShape(8.19e9, 36, 32, 8, 128, 40_960),
    "qwen3-32b": ModelShape(32.8e9, 64, 64, 8, 128, 40_960),
}


@dataclass(frozen=True, slots=True)
class HardwareConfig:
    """What a replica runs on, and which model."""

    gpu: str = "h100"
    """One of h200, h100, a100, l4."""
    num_gpus: int = 1
    """GPUs of one replica; they share weights, KV and work without loss."""
    sim_model: str = "llama-3.1-8b"
    """One of smollm2-135m, llama-3.2-1b, llama-3.1-8b, llama-3.1-70b, mistral-7b, qwen3-8b,
    qwen3-32b; or PARAMETERS,LAYERS,HEADS,KV_HEADS,HEAD_DIM[,MAX_LEN], as in 8e9,32,32,8,128."""
    bytes_per_parameter: float = 2.0
    """Of the weights: 2 for BF16, 1 for FP8, about 0.5 for 4 bits."""
    bytes_per_kv_value: float = 2.0
    """Of keys and values."""
    flops_efficiency: float = 0.6
    """Share of the data sheet's rate that the kernels reach."""
    bandwidth_efficiency: float = 0.8
    """Share of the data sheet's bandwidth that the kernels reach."""
    step_overhead_us: float = 500.0
    """Of every step, whatever is in it: launches, sampling, messages."""

    def __post_init__(self) -> None:
        check("gpu", self.gpu, self.gpu in GPUS, f"must be one of {', '.join(GPUS)}")
        check("num_gpus", self.num_gpus, self.num_gpus >= 1, "must be at least 1")
        for name in ("bytes_per_parameter", "bytes_per_kv_value"):
            value = getattr(self, name)
            check(name, value, 0 < value <= 8, "must be in (0, 8]")
        for name in ("flops_efficiency", "bandwidth_efficiency"):
            value = getattr(self, name)
            check(name, value, 0 < value <= 1, "must be in (0, 1]")
        overhead = self.step_overhead_us
        check("step_overhead_us", overhead, 0 <= overhead <= 1e7, "must be 0 to 10000000")
        parse_model(self.sim_model)

    @property
    def model_shape(self) -> ModelShape:
        return parse_model(self.sim_model)


def parse_model(text: str) -> ModelShape:
    """The shape of a model by its name or by its numbers.

    Raises:
        ValueError: With (name, value, rule): it is neither.
    """
    if text in MODELS:
        return MODELS[text]
    rule = (
        f"must be one of {', '.join(MODELS)}, or"
        " PARAMETERS,LAYERS,HEADS,KV_HEADS,HEAD_DIM[,MAX_LEN]"
    )
    parts = text.split(",")
    if len(parts) not in (5, 6):
        raise ValueError("sim_model", text, rule)
    try:
        num_parameters, counts = float(parts[0]), [int(part) for part in parts[1:]]
    except ValueError:
        raise ValueError("sim_model", text, rule) from None
    check("sim_model", text, 0 < num_parameters < 1e14 and min(counts) >= 1, rule)
    layers, heads, kv_heads, head_dim, *rest = counts
    return ModelShape(num_parameters, layers, heads, kv_heads, head_dim, (rest or [131_072])[0])
