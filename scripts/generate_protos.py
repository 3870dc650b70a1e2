"""Generate pagewire/v1 from protos/: `python scripts/generate_protos.py [output root]`.

The output depends on the exact versions of grpcio-tools and mypy-protobuf, which pyproject.toml
pins in `[dev]`; a test compares it byte for byte with what is committed.
"""

from __future__ import annotations

import os
import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("python", "grpc_python", "mypy", "mypy_grpc")


def generate(output: Path) -> None:
    """Write `pagewire/v1/*_pb2*` under `output`.

    Raises:
        RuntimeError: protoc refused the files; it has said why on stderr.
    """
    protos = ROOT / "protos"
    sources = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    well_known = files("grpc_tools") / "_proto"
    # protoc finds its plug-ins beside the interpreter, also when the environment is not active.
    scripts = Path(sys.executable).parent
    os.environ["PATH"] = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    flags = [f"--{kind}_out={output}" for kind in KINDS]
    if protoc.main(["protoc", f"-I{protos}", f"-I{well_known}", *flags, *sources]) != 0:
        raise RuntimeError("protoc failed")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
