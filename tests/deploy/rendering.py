"""deploy/envoy/render.py as a module: the folder is no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "envoy" / "render.py"
ENVOY = Path(sys.executable).parent / "envoy"

_spec = importlib.util.spec_from_file_location("render", SCRIPT)
assert _spec is not None and _spec.loader is not None
render = importlib.util.module_from_spec(_spec)
sys.modules["render"] = render  # where dataclasses look for what annotations mean
_spec.loader.exec_module(render)
