"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# How long an example takes says nothing about whether it is right, on a busy machine least of all.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Other tests run beside this one, and use the other cores: a model here has one thread, in
    # this process and in those that it starts. Set before anything imports torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
