"""A random Llama of one layer and hidden size 64 with SmolLM2's tokenizer: nothing but overhead.

Its weights are bfloat16, as those of most checkpoints are.

    python -m benchmarks.tiny_llama DIRECTORY

Served by anything that reads Hugging Face folders, it shows what a token costs around the model:
`python benchmarks/control_plane.py --model DIRECTORY --device cpu`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from pagewire.model_source import resolve_model
from tokenizer_svc.gguf_tokenizer import convert_gguf

HIDDEN, INTERMEDIATE, NUM_HEADS, VOCABULARY = 64, 128, 2, 49_152
# Wide enough that the best two logits of a step are apart.
STD = 0.5

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": NUM_HEADS,
    "num_key_value_heads": NUM_HEADS,
    "head_dim": HIDDEN // NUM_HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN, HIDDEN),
    "self_attn.v_proj": (HIDDEN, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}


def write_tiny_llama(directory: Path, seed: int = 0) -> None:
    """Write the model's folder; `directory` may be there already."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return (STD * torch.randn(shape, generator=generator)).bfloat16()

    layer = "model.layers.0"
    tensors = {f"{layer}.{name}.weight": draw(*shape) for name, shape in SHAPES.items()}
    tensors["model.embed_tokens.weight"] = draw(VOCABULARY, HIDDEN)
    for name in (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm", "model.norm"):
        tensors[f"{name}.weight"] = torch.ones(HIDDEN, dtype=torch.bfloat16)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    for name, content in convert_gguf(resolve_model("smollm2").path).items():
        if name != "config.json":
            (directory / name).write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write_tiny_llama(options.directory, options.seed)


if __name__ == "__main__":
    main()
