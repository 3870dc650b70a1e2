"""Where the tests of this folder run: on a CUDA device, in a process of their own.

`make test-cuda` runs them. Kernels of Triton must be compiled, so not in a process whose tests
run them in the interpreter.
"""

from __future__ import annotations

import os

import pytest
import torch

CUDA = torch.device("cuda", 0)

of_triton = pytest.mark.filterwarnings("ignore:warmup, rep, and use_cuda_graph:DeprecationWarning")
"""It uses what it deprecates."""
needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs a CUDA device, and a process without Triton's interpreter",
)
