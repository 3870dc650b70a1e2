"""Which of gRPC's two event loops a process has beneath grpc.aio; chosen before gRPC is imported.

The newer one, its default, reads and writes on threads of its own, which hand each operation to the
thread that waits for operations: a message wakes two or three threads. The older one does it all on
that thread. docs/benchmarks.md has what each costs.
"""

from __future__ import annotations

import os

_VARIABLE = "GRPC_EXPERIMENTS"
_OLDER = "-event_engine_listener,-event_engine_client"
"""Names of gRPC 1.85; one that a version does not know changes nothing there but a line in its log,
which `pagewire.kit` has switched off."""


def take_older() -> None:
    """Have the older loop, unless the environment says something else.

    For entry points alone: other programs that use the SDK have what they have.
    """
    os.environ.setdefault(_VARIABLE, _OLDER)
