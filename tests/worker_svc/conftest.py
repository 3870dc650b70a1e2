"""Fixtures of the tensor tests: torch in its serving environment, one thread, models on disk."""

from __future__ import annotations

from worker_svc.torch_runtime import prepare_environment

# Before anything here imports torch.
prepare_environment()
