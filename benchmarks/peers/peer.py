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

from benchmarks.peers.suite import ENVIRONMENTS, HF_MODEL, Suite

LLAMA_SERVER = ENVIRONMENTS / "llama.cpp" / "bin" / "llama-server"
VLLM = ENVIRONMENTS / "vllm" / "bin" / "python"
OPENVINO_MODELS = ENVIRONMENTS / "openvino-models"

CONTEXT = 2048
KV_GIB = 1

Command = Callable[[int, Suite], list[str]]
"""Of a server, by its port and what is measured."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to serve the model."""

    name: str
    command: Command
    needs: tuple[Path, ...] = ()
    """Files without which it is not installed."""
    reads_folders: bool = True
    """It serves any Hugging Face folder; if not, only the embedded model."""
    env: Mapping[str, str] = field(default_factory=dict)
    is_ours: bool = False
    bench_flags: tuple[str, ...] = ()
    """Of `pagewire bench serve`, where the server wants to be asked in its own way."""
    is_named_by_folder: bool = False
    """Its model has the folder for a name."""
    start_timeout_s: float = 300.0
    is_library: bool = False
    """Its command reads questions from standard input (`engine_protocol`) and serves no port."""

    def missing(self, suite: Suite) -> str:
        """Why it cannot take part; empty: it can."""
        if not self.reads_folders and suite.gguf is None:
            return "it is set up for the embedded model only"
        needs = (*self.needs, suite.folder) if suite.gguf is None else self.needs
        if all(path.exists() for path in needs):
            return ""
        return "not installed: python -m benchmarks.peers.environments"


def _ours(name: str, *flags: str, reads_folders: bool = True, takes_folder: bool = False) -> Peer:
    def command(port: int, suite: Suite) -> list[str]:
        return [
            sys.executable,
            "-m",
            "pagewire.cli",
            "serve",
            f"--model={suite.folder if takes_folder else suite.gguf or suite.folder}",
            f"--served-model-name={suite.model_name}",
            f"--http-port={port}",
            "--grpc-port=0",
            f"--max-model-len={CONTEXT}",
            f"--max-num-seqs={suite.max_streams}",
            f"--kv-cache-memory-bytes={KV_GIB * 2**30}",
            *flags,
        ]

    needs = (HF_MODEL,) if takes_folder else ()
    return Peer(name, command, needs, reads_folders=reads_folders, is_ours=True)


def _vllm(dtype: str) -> Command:
    return lambda port, suite: [
        str(VLLM),
        "-m",
        "vllm.entrypoints.openai.api_server",
        f"--model={suite.folder}",
        f"--served-model-name={suite.model_name}",
        f"--dtype={dtype}",
        f"--max-model-len={CONTEXT}",
        f"--max-num-seqs={suite.max_streams}",
        "--host=127.0.0.1",
        f"--port={port}",
    ]


def _llama_cpp(port: int, suite: Suite) -> list[str]:
    cores = str(os.cpu_count())
    # Its context is shared out evenly among the streams.
    streams = suite.max_streams // 2
    flags = {
        "--model": str(suite.gguf),
        "--alias": suite.model_name,
        "--parallel": str(streams),
        "--ctx-size": str(streams * 1088),
        "--flash-attn": "off",
        "--threads": cores,
        "--threads-batch": cores,
        "--host": "127.0.0.1",
        "--port": str(port),
    }
    # It takes no `--flag=value`.
    return [str(LLAMA_SERVER), *(word for flag in flags.items() for word in flag)]


def _transformers(port: int, suite: Suite) -> list[str]:
    return [
        str(ENVIRONMENTS / "transformers" / "bin" / "transformers"),
        "serve",
        str(suite.folder),
        "--continuous-batching",
        "--device=cpu",
        "--dtype=bfloat16",
        "--host=127.0.0.1",
        f"--port={port}",
    ]


def _openvino(precision: str) -> Command:
    script = str(Path(__file__).with_name("openvino_engine.py"))
    return lambda port, suite: [_python("openvino"), script, str(OPENVINO_MODELS / precision)]


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
_TRANSFORMERS_FLAGS = ("--backend=openai-chat", "--no-ignore-eos")

SIMULATED = _ours("simulated", "--device=sim", "--sim-step-time-us=30000")
"""Always as quick, so that what differs between two looks at it is the looks'."""

PEERS = (
    _ours("pagewire"),
    _ours("pagewire n-gram", "--speculative-method=ngram", reads_folders=False),
    _ours(
        "pagewire bf16 folder", "--attention-backend=cpu", reads_folders=False, takes_folder=True
    ),
    Peer(
        "llama.cpp Q4_1",
        _llama_cpp,
        needs=(LLAMA_SERVER,),
        reads_folders=False,
    ),
    # Which format is the quicker one depends on the processor.
    *(
        Peer(
            f"vllm-cpu {dtype}",
            _vllm(dtype),
            needs=(VLLM,),
            env=_VLLM_ENV,
            start_timeout_s=600.0,
        )
        for dtype in ("bfloat16", "float32")
    ),
    Peer(
        "transformers bf16",
        _transformers,
        needs=(ENVIRONMENTS / "transformers" / "bin" / "transformers",),
        env={"HF_HUB_OFFLINE": "1"},
        bench_flags=_TRANSFORMERS_FLAGS,
        is_named_by_folder=True,
    ),
    *(
        Peer(
            f"OpenVINO GenAI {precision}",
            _openvino(precision),
            needs=(Path(_python("openvino")), OPENVINO_MODELS / precision),
            reads_folders=False,
            is_library=True,
        )
        for precision in ("fp16", "int8")
    ),
)
