"""The committed stubs are what the generator makes of protos/, byte for byte."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("grpcio-tools", "mypy-protobuf")


def pinned(tool: str) -> str:
    """Return the version that pyproject.toml pins for a tool of the generator."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = project["optional-dependencies"]["dev"]
    return next(r.partition("==")[2] for r in requirements if r.startswith(f"{tool}=="))


@pytest.mark.parametrize("tool", TOOLS)
def test_the_generators_tools_are_the_pinned_ones(tool: str) -> None:
    assert version(tool) == pinned(tool), (
        f"stubs depend on the exact {tool}: run `pip install {tool}=={pinned(tool)}`"
    )


def test_the_stubs_are_what_the_generator_makes(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "generate_protos.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "pagewire/v1").iterdir()}
    kept = {path.name: path.read_bytes() for path in (ROOT / "pagewire/v1").glob("*_pb2*")}
    different = sorted(name for name in made | kept if made.get(name) != kept.get(name))
    assert different == [], (
        f"{', '.join(different)} differ from protos/: run `make protos` "
        f"(with {' and '.join(f'{tool}=={pinned(tool)}' for tool in TOOLS)})"
    )
