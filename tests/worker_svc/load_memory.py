"""How much memory of its own a worker's process takes while it loads a checkpoint.

As a script: writes a random checkpoint in shards of a size in MB, loads it, and prints a line of
JSON. A process of its own, since the size of one that did other things says nothing.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from pathlib import Path

import torch
from safetensors.torch import save_file

from pagewire.engine_config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from worker_svc.cpu_memory import release_free_memory
from worker_svc.model_runner import ModelRunner

HIDDEN_SIZE, INTERMEDIATE_SIZE, VOCAB_SIZE = 1024, 4096, 8192
_POLL_S = 0.001


def write_checkpoint(directory: Path, megabytes: int) -> int:
    """Write a Llama in bfloat16, a shard a layer; gives the bytes of its largest tensor."""
    kv_size, hidden, wide = 256, HIDDEN_SIZE, INTERMEDIATE_SIZE
    layer = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv_size, hidden),
        "self_attn.v_proj": (kv_size, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden),
        "mlp.up_proj": (wide, hidden),
        "mlp.down_proj": (hidden, wide),
    }
    layer_bytes = 2 * (hidden * (2 * hidden + 2 * kv_size + 3 * wide))
    num_layers = max(1, round((megabytes * 10**6 - 2 * VOCAB_SIZE * hidden) / layer_bytes))
    shards = [
        {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
        for index in range(num_layers)
    ]
    shards.append(
        {"model.embed_tokens.weight": (VOCAB_SIZE, hidden), "model.norm.weight": (hidden,)}
    )
    weight_map = {}
    for index, shapes in enumerate(shards):
        file = f"model-{index}.safetensors"
        tensors = {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}
        save_file(tensors, directory / file)
        weight_map.update(dict.fromkeys(shapes, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return 2 * VOCAB_SIZE * hidden


def private_bytes() -> int:
    """Memory that is this process's alone, file pages included."""
    total = 0
    for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith(("Private_Clean:", "Private_Dirty:")):
            total += int(line.split()[1]) * 1024
    return total


class PeakPrivateMemory:
    """Looks at this process's memory from a thread, as often as it can."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakPrivateMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def note(self) -> None:
        self.peak_bytes = max(self.peak_bytes, private_bytes())

    def _watch(self) -> None:
        while not self._stop.wait(_POLL_S):
            self.note()


def load(directory: Path) -> tuple[int, int]:
    """Load a checkpoint; gives the peak beside what was there before, and what is kept."""
    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model=str(directory), dtype="bfloat16"),
            cache=CacheConfig(kv_cache_memory_bytes=2**20),
            device=DeviceConfig(device="cpu", num_threads=1),
        )
    )
    release_free_memory()  # what the C library keeps would be used again, unseen
    before = private_bytes()
    with PeakPrivateMemory() as memory:
        # Each tensor's own moment is seen, however slow the thread is.
        info = runner.load(lambda stage, fraction: memory.note())
    return memory.peak_bytes - before, info.weight_bytes


def main() -> None:
    megabytes = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        warm, directory = Path(folder) / "warm", Path(folder) / "model"
        for path in (warm, directory):
            path.mkdir()
        write_checkpoint(warm, 1)
        load(warm)  # what a process takes at its first load is not the checkpoint's
        largest_bytes = write_checkpoint(directory, megabytes)
        peak_bytes, kept_bytes = load(directory)
    print(json.dumps({"peak": peak_bytes, "kept": kept_bytes, "largest": largest_bytes}))


if __name__ == "__main__":
    main()
