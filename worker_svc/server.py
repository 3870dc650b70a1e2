"""The worker's composition root: builds the parts, joins them, and runs them to the end.

Called by `__main__`. Order at the end: no new work, the step in flight is answered, streams end,
the device thread ends, the ports close.
"""

from __future__ import annotations

import socket

from pagewire.kit.logs import configure_logging
from pagewire.kit.process_figures import Work
from pagewire.kit.server import ServiceServer, exit_with_parent, shutdown_signal
from pagewire.kit.spans import open_spans
from pagewire.v1 import worker_pb2_grpc
from worker_svc.config import WorkerConfig
from worker_svc.metrics import WorkerCollector
from worker_svc.runners import RunnerFactory, make_runner, prepare_device
from worker_svc.servicer import WorkerAdminServicer, WorkerServicer
from worker_svc.worker import Worker

SERVICE_NAME = "pagewire.v1.WorkerService"
_STOP_GRACE_S = 1.0


class WorkerServer:
    """A worker with its gRPC server. `start`, then `stop`."""

    def __init__(self, config: WorkerConfig, runner_factory: RunnerFactory = make_runner) -> None:
        self._config = config
        self.worker = Worker(
            runner_factory,
            config.lease_timeout_s,
            host=group_host(config.server.listen),
            num_replicas_here=config.replicas_on_machine,
            profiler_dir=config.profiler_dir,
        )
        self.spans = open_spans("worker", config.server.otlp_traces_endpoint)
        self.server = ServiceServer(
            config.server,
            SERVICE_NAME,
            register=[
                lambda server: worker_pb2_grpc.add_WorkerServiceServicer_to_server(
                    WorkerServicer(self.worker, self.server.process.latest, self.spans), server
                )
            ],
            callers=("scheduler",),
            register_admin=[
                lambda server: worker_pb2_grpc.add_WorkerAdminServiceServicer_to_server(
                    WorkerAdminServicer(self.worker), server
                )
            ],
        )

        self.server.registry.register(WorkerCollector(self.worker.counters, self.worker.status))

        self.server.process.work = self._work

    def _work(self) -> Work:
        device = self.worker.device
        return Work.of(device.busy, device.num_queued)

    async def start(self) -> None:
        """Serve; a blank worker is a worker that can be initialized."""
        self.worker.start()
        if self._config.preload:
            self.worker.prepare(prepare_device)
        await self.server.start()
        await self.server.set_serving(True)

    async def stop(self) -> None:
        await self.server.set_serving(False, "draining")
        await self.worker.shut_down(self._config.server.drain_timeout_s)
        await self.server.stop(_STOP_GRACE_S)
        await self.spans.close()


def group_host(listen: str) -> str:
    """The address on which other ranks reach a worker that listens on `listen`."""
    host = "127.0.0.1" if listen.startswith("unix:") else listen.rpartition(":")[0].strip("[]")
    # A wildcard address is none to connect to.
    return socket.gethostbyname(socket.gethostname()) if host in ("0.0.0.0", "::") else host


async def serve(config: WorkerConfig) -> int:
    """Run until the first SIGTERM or SIGINT; returns the exit code."""
    configure_logging("worker", config.server.log_level)
    exit_with_parent()
    shutdown = shutdown_signal()
    server = WorkerServer(config)
    await server.start()
    try:
        await shutdown
    finally:
        await server.stop()
    return 0
