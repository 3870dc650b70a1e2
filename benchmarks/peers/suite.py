"""What is measured together: workloads on one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.workloads import CONTROL_PLANE, SERVING, Workload
from pagewire.model_source import resolve_model

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-bench"
HF_MODEL = ENVIRONMENTS / "smollm2-bf16"
"""The embedded model as a Hugging Face folder in bfloat16, for peers that read no GGUF file."""
TINY_MODEL = ENVIRONMENTS / "tiny-llama-bf16"
"""What `benchmarks.tiny_llama` writes."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Workloads on one model."""

    workloads: Sequence[Workload]
    folder: Path
    """The model as a Hugging Face folder."""
    gguf: Path | None
    """Its GGUF file, where it has one; then folders hold the same numbers dequantized."""
    max_streams: int
    model_name: str = "measured"


SUITES = {
    "serving": Suite(SERVING, HF_MODEL, resolve_model("smollm2").path, max_streams=64),
    # Next to no model: what is measured is all that is around it.
    "control-plane": Suite(CONTROL_PLANE, TINY_MODEL, None, max_streams=256),
}
