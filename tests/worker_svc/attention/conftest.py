"""The environment in which Triton's kernels run on a CPU, set before anything imports triton."""

from __future__ import annotations

import os

# Triton reads it when a kernel is defined, so while modules are imported: a fixture is too late.
# Nothing else here runs Triton's kernels, and the child processes of tests only inherit it.
os.environ["TRITON_INTERPRET"] = "1"
