"""How fast the machine is just now: rates of matrix products, in a process of its own.

    python -m benchmarks.peers.probe            # one number: GFLOP/s of a product of 1,024
    python -m benchmarks.peers.probe --floor    # JSON: seconds of the products of one step, by rows

The floor is the time that the linear layers of SmolLM2-135M take for a step of so many rows, in the
number format that torch is quickest with here: no engine that multiplies with full weights can be
quicker. Machines that share a host change their speed within seconds, so a run is worth something
only beside a probe of the same moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[2]
SIZE = 1024
REPEATS = 12
FLOOR_ROWS = (1, 8, 32, 64, 1024)
# Layers, and (output, input) features of the linear layers of one: SmolLM2-135M's configuration.
NUM_LAYERS = 30
LAYER = ((576, 576), (192, 576), (192, 576), (576, 576), (1536, 576), (1536, 576), (576, 1536))
VOCABULARY = (49_152, 576)
# Times slower: the processor has no instructions for such numbers, and more rows take minutes.
_HOPELESS = 4.0


def gemm_rate() -> float:
    """Return GFLOP/s of a float32 product, the best of some, as a fresh process sees it."""
    return float(_ask())


def gemm_floor() -> dict[int, float]:
    """Return seconds of a step's products by its number of rows."""
    return {int(rows): seconds for rows, seconds in json.loads(_ask("--floor")).items()}


def _ask(*flags: str) -> str:
    command = [sys.executable, "-m", "benchmarks.peers.probe", *flags]
    done = subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=300
    )
    return done.stdout


def _measure_rate() -> float:
    import torch

    square = torch.randn(SIZE, SIZE)
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        torch.nn.functional.linear(square, square)
        times.append(time.perf_counter() - began)
    return 2 * SIZE**3 / min(times) / 1e9


def _measure_floor() -> dict[int, float]:
    import torch

    floors: dict[int, float] = {}
    for dtype in (torch.float32, torch.bfloat16):
        layers = [torch.randn(shape, dtype=dtype) for shape in LAYER * NUM_LAYERS]
        head = torch.randn(VOCABULARY, dtype=dtype)
        for rows in FLOOR_ROWS:
            seconds = min(_step_seconds(layers, head, rows) for _ in range(2 if rows > 64 else 5))
            if seconds > _HOPELESS * floors.get(rows, seconds):
                break
            floors[rows] = min(seconds, floors.get(rows, seconds))
    return floors


def _step_seconds(layers: Sequence[torch.Tensor], head: torch.Tensor, rows: int) -> float:
    from torch.nn.functional import linear

    inputs = {width: head.new_ones(rows, width) for width in {weight.shape[1] for weight in layers}}
    began = time.perf_counter()
    for weight in layers:
        linear(inputs[weight.shape[1]], weight)
    # Of a prompt only the last row needs logits.
    linear(inputs[head.shape[1]][: 1 if rows > 64 else None], head)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(_measure_floor()) if "--floor" in sys.argv[1:] else _measure_rate())
