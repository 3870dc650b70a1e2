"""compose.yaml as a running project, for tests: started, scaled, looked into, ended.

Every project has a name and published ports of its own, so that it meets no other one.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.container_engine import TAG, compose_command, docker, inspect, run

WAIT_S = 300.0
_POLL_S = 0.2


class Reset:
    """In an override: what the file says is taken away."""


class _Dumper(yaml.SafeDumper):
    """Of overrides."""


_Dumper.add_representer(Reset, lambda dumper, _: dumper.represent_scalar("!reset", "null"))


@contextmanager
def compose_stack(
    context: Path, environment: Mapping[str, str], override: Mapping[str, Any], name: str = "stack"
) -> Iterator[ComposeStack]:
    """Give a project that is not started; remove all of it afterwards."""
    stack = ComposeStack(context, environment, override, name)
    try:
        yield stack
    finally:
        stack.compose("down", "--volumes", "--timeout=0")


class ComposeStack:
    """A project of compose.yaml.

    Attributes:
        http_url: Of the HTTP API, without /v1.
        grpc_target: Of the public gRPC API.
    """

    def __init__(
        self,
        context: Path,
        environment: Mapping[str, str],
        override: Mapping[str, Any],
        name: str,
    ) -> None:
        self.project = f"pagewire-{TAG}-{context.name}-{name}".lower()
        http_port, grpc_port = _free_ports(2)
        self.http_url = f"http://127.0.0.1:{http_port}"
        self.grpc_target = f"127.0.0.1:{grpc_port}"
        self._context = context
        self._environment = {
            "PAGEWIRE_TAG": TAG,
            "PAGEWIRE_HTTP_PORT": str(http_port),
            "PAGEWIRE_GRPC_PORT": str(grpc_port),
            **environment,
        }
        self._override = context / f"override-{name}.yaml"
        self._override.write_text(yaml.dump(dict(override), Dumper=_Dumper))

    def compose(self, *arguments: str) -> str:
        """Run a command of Compose on the project."""
        files = [f"--file={self._context / 'compose.yaml'}", f"--file={self._override}"]
        command = [*compose_command(), f"--project-name={self.project}", *files, *arguments]
        return run(command, env=self._environment, cwd=self._context).stdout

    def up(self, **scale: int) -> None:
        """Start what does not run, and wait until all of it is healthy."""
        scales = [f"--scale={service}={count}" for service, count in scale.items()]
        try:
            self.compose("up", "--detach", "--no-build", "--no-recreate", "--wait", *scales)
        except AssertionError as error:
            error.add_note(self.compose("logs", "--no-color", "--tail=20"))
            raise

    def containers(self, service: str | None = None) -> list[str]:
        """Return the ids of the running containers, of one service or all."""
        labels = {"com.docker.compose.project": self.project}
        if service is not None:
            labels["com.docker.compose.service"] = service
        filters = [f"--filter=label={key}={value}" for key, value in labels.items()]
        return docker("ps", "--quiet", "--no-trunc", *filters).split()

    def logs(self, service: str) -> list[dict[str, Any]]:
        """Return the log lines of a service that are JSON."""
        lines = self.compose("logs", "--no-log-prefix", "--no-color", service).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def figure(self, container: str, port: int, name: str) -> float:
        """Return a metric of a container, summed over its labels."""
        text = httpx.get(f"http://{address(container)}:{port}/metrics", timeout=30).text
        samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
        return sum(sample.value for sample in samples if sample.name == name)

    def wait_healthy(self, container: str) -> None:
        """Wait until a container has been found healthy."""
        deadline = time.monotonic() + WAIT_S
        while inspect(container)["State"].get("Health", {}).get("Status") != "healthy":
            assert time.monotonic() < deadline, docker("logs", "--tail=50", container)
            time.sleep(_POLL_S)  # asked again: an event of the engine may come before we listen


def address(container: str) -> str:
    """Return the address of a container in the project's network."""
    networks = inspect(container)["NetworkSettings"]["Networks"]
    return str(next(iter(networks.values()))["IPAddress"])


def _free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody uses now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
