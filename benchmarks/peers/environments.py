"""Sets up what of the peers can be set up here, each in a virtual environment of its own.

    python -m benchmarks.peers.environments [NAME ...]

In `.venv-bench/`. What is there is left alone; remove its folder to have it made anew. llama.cpp is
built from the source that the package llama-cpp-python carries, with this processor's instructions.
What cannot be installed is said, and the others go on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers.model import export_hugging_face
from benchmarks.peers.peer import LLAMA_SERVER, OPENVINO_MODELS
from benchmarks.peers.suite import ENVIRONMENTS, HF_MODEL, TINY_MODEL
from benchmarks.tiny_llama import write_tiny_llama

REQUIREMENTS = Path(__file__).with_name("requirements")
LLAMA_SOURCE = "llama-cpp-python==0.3.36"
_LLAMA_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "BUILD_SHARED_LIBS": "OFF",
}


def make_environment(name: str) -> Path:
    """Make a virtual environment with its packages, unless it is there; return its bin folder.

    Raises:
        subprocess.CalledProcessError: A package cannot be installed; pip has said why.
    """
    folder = ENVIRONMENTS / name
    stamp = folder / "complete"
    if not stamp.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True)
        _pip(folder, "install", "-r", str(REQUIREMENTS / f"{name}.txt"))
        stamp.touch()
    return folder / "bin"


def make_vllm() -> None:
    """Install the CPU build of vLLM; of what it pulls in, three do not fit its torch."""
    bin_folder = make_environment("vllm")
    _pip(bin_folder.parent, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    export_hugging_face(HF_MODEL)


def make_transformers() -> None:
    """The server of transformers."""
    make_environment("transformers")
    export_hugging_face(HF_MODEL)


def make_openvino() -> None:
    """OpenVINO GenAI, and the model in its format; the exporter needs another environment."""
    make_environment("openvino")
    exporter = make_environment("openvino-export") / "optimum-cli"
    export_hugging_face(HF_MODEL)
    for precision in ("fp16", "int8"):
        folder = OPENVINO_MODELS / precision
        if not folder.exists():
            _run(
                exporter,
                "export",
                "openvino",
                f"--model={HF_MODEL}",
                "--task=text-generation-with-past",
                f"--weight-format={precision}",
                folder,
            )


def make_llama_cpp() -> None:
    """llama.cpp's server."""
    if LLAMA_SERVER.exists():
        return
    tools = make_environment("llama.cpp")
    with tempfile.TemporaryDirectory() as name:
        source = _fetch_llama_cpp(Path(name))
        build = Path(name) / "build"
        options = [f"-D{key}={value}" for key, value in _LLAMA_OPTIONS.items()]
        ninja = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
        _run(tools / "cmake", "-S", source, "-B", build, "-G", "Ninja", ninja, *options)
        _run(tools / "cmake", "--build", build, "--target", "llama-server")
        shutil.copy(build / "bin" / "llama-server", LLAMA_SERVER)


def make_plots() -> None:
    """What draws the figures."""
    make_environment("plots")


def make_tiny_model() -> None:
    """The model of next to nothing, for the control plane."""
    if not TINY_MODEL.exists():
        write_tiny_llama(TINY_MODEL)


MAKERS: dict[str, Callable[[], None]] = {
    "llama.cpp": make_llama_cpp,
    "vllm": make_vllm,
    "openvino": make_openvino,
    "transformers": make_transformers,
    "plots": make_plots,
    "tiny-model": make_tiny_model,
}


def _fetch_llama_cpp(folder: Path) -> Path:
    python = ENVIRONMENTS / "llama.cpp"
    _pip(
        python,
        *("download", "--no-deps", "--no-binary=llama-cpp-python", f"--dest={folder}"),
        LLAMA_SOURCE,
    )
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = folder.glob("*/vendor/llama.cpp")
    _keep_amx_stores(source / "ggml/src/ggml-cpu/amx/mmq.cpp")
    return source


def _keep_amx_stores(file: Path) -> None:
    """Without a barrier GCC 12 drops the stores to AMX's tile configuration, and tiles trap."""
    barrier = 'asm volatile("" ::: "memory"); '
    file.write_text(file.read_text().replace("_tile_loadconfig(&", barrier + "_tile_loadconfig(&"))


def _pip(environment: Path, *arguments: str) -> None:
    pip = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(environment / "bin" / "python", *pip, *arguments)


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, stdin=subprocess.DEVNULL)


def main(argv: Sequence[str] | None = None) -> int:
    """Make what is asked for; 1: something could not be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MAKERS))
    names = parser.parse_args(argv).names or list(MAKERS)
    if unknown := [name for name in names if name not in MAKERS]:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(MAKERS)}")
    failed = []
    for name in names:
        print(f"{name} ...", flush=True)
        try:
            MAKERS[name]()
        except (subprocess.CalledProcessError, OSError) as exc:
            print(f"{name} cannot be made: {exc}", file=sys.stderr)
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
