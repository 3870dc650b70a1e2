"""transformers as the reference: greedy ids, and how close each choice was.

The SmolLM2 reference takes half a minute, so its result is kept under the test cache: a file named
by all that decides it. As a script it computes that file, in a process of its own: transformers
warns, and keeps half a gigabyte.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pagewire.model_source import resolve_model


@dataclass(frozen=True)
class GreedyReference:
    token_ids: list[int]
    gaps: list[float]
    """For each token: the best logit minus the second best."""


def greedy(model: Any, prompt_token_ids: Sequence[int], max_tokens: int) -> GreedyReference:
    """transformers' `generate`, greedy, going on past EOS."""
    import torch

    result = model.generate(
        torch.tensor([list(prompt_token_ids)]),
        attention_mask=torch.ones(1, len(prompt_token_ids), dtype=torch.int64),
        max_new_tokens=max_tokens,
        min_new_tokens=None,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(result.logits).float()
    best = logits.topk(2).values
    return GreedyReference(
        token_ids=result.sequences[0, len(prompt_token_ids) :].tolist(),
        gaps=(best[:, 0] - best[:, 1]).tolist(),
    )


def cache_directory() -> Path:
    root = os.environ.get("PAGEWIRE_TEST_CACHE")
    path = Path(root) if root else Path.home() / ".cache" / "pagewire" / "tests"
    path.mkdir(parents=True, exist_ok=True)
    return path


def smollm2_greedy(prompts: Sequence[Sequence[int]], max_tokens: int) -> list[GreedyReference]:
    """Float32 greedy ids of the embedded model, dequantized by transformers itself."""
    task = json.dumps({"prompts": [list(prompt) for prompt in prompts], "max_tokens": max_tokens})
    gguf = resolve_model("smollm2").path
    parts = (task, version("transformers"), gguf.name, str(gguf.stat().st_size))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    path = cache_directory() / f"smollm2-greedy-{key}.json"
    if not path.exists():
        command = [sys.executable, "-m", "tests.worker_svc.reference", str(path)]
        subprocess.run(command, input=task, text=True, check=True, timeout=500)
    return [GreedyReference(**item) for item in json.loads(path.read_text())]


def _load_smollm2() -> Any:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    gguf = resolve_model("smollm2").path
    # `from_pretrained` gives a model in evaluation mode.
    return AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )


def main() -> None:
    path = Path(sys.argv[1])
    task = json.load(sys.stdin)
    model = _load_smollm2()
    results = [asdict(greedy(model, prompt, task["max_tokens"])) for prompt in task["prompts"]]
    # Renamed once complete: a run that is stopped leaves no half reference.
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(results))
    partial.replace(path)


if __name__ == "__main__":
    main()
