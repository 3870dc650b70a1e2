"""Settings of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

from pagewire.kit import grpc_loop

# As all services have it. Set before anything imports gRPC.
grpc_loop.take_older()
# How long an example takes says nothing about whether it is right, on a busy machine least of all.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Other tests run beside this one, and use the other cores: a model here has one thread, in
    # this process and in those that it starts. Set before anything imports torch.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
