"""The worker process's own settings; what it executes comes from the scheduler in Initialize."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pagewire.kit.server import ServerConfig
from worker_svc.worker import DEFAULT_LEASE_TIMEOUT_S

_SERVER = ServerConfig(listen="127.0.0.1:50053", admin_listen="127.0.0.1:50063", metrics_port=9103)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Runs one worker: blank until a scheduler initializes it, then one device's share of a model.

    The i-th worker of a machine listens on ports 50053 + i, 50063 + i (administration) and 9103 + i
    (metrics): whoever starts several passes the addresses.
    """

    server: ServerConfig = _SERVER
    lease_timeout_s: float = field(
        default=DEFAULT_LEASE_TIMEOUT_S, metadata={"flag": "--lease-timeout"}
    )
    """Seconds of silence after which the scheduler that holds this worker loses it."""
    replicas_on_machine: int = 1
    """Replicas whose workers are on this machine, this one's among them: on a CPU each takes its
    part of the memory for KV that is free, unless --kv-cache-memory-bytes says how much."""
    profiler_dir: Path | None = None
    """Folder for the traces of StartProfile, made if it is missing; none: profiles are refused."""
    preload: bool = False
    """Import PyTorch at once, which takes seconds, and not when a scheduler asks for a model; no
    simulated device needs it."""

    def __post_init__(self) -> None:
        if not 0 < self.lease_timeout_s <= 3600:
            raise ValueError("lease_timeout_s", self.lease_timeout_s, "must be in (0, 3600]")
        if not 1 <= self.replicas_on_machine <= 64:
            raise ValueError("replicas_on_machine", self.replicas_on_machine, "must be 1 to 64")
