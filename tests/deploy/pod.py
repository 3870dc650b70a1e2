"""One pod of a mesh on the loopback: a service, if the role is one, and its sidecar."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from pagewire.kit.lifecycle import child_environment
from tests.deploy.rendering import ENVOY, ROOT

WAIT_TIMEOUT_S = 240.0
"""Of anything that must come: a machine that is shared may be very slow."""


class Pod:
    """One service, if the role is one, and its sidecar."""

    def __init__(self, name: str, ip: str, folder: Path, command: Sequence[str] | None) -> None:
        self.name = name
        self.role = name.partition("-")[0]
        self.ip = ip
        self.folder = folder
        self._command = command
        self.app: subprocess.Popen[bytes] | None = None
        self.sidecar: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.start_sidecar()
        self.start_app()

    def start_app(self) -> None:
        if self._command is not None:
            self.app = self._run(self._command, "app")

    def start_sidecar(self) -> None:
        flags = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]
        config = str(self.folder / "envoy.yaml")
        # It would outlive a harness that is killed.
        command = ["setpriv", "--pdeathsig", "KILL", str(ENVOY), "-c", config, *flags]
        self.sidecar = self._run(command, "sidecar")

    def end(self) -> None:
        for process in (self.app, self.sidecar):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()

    def is_dead(self) -> bool:
        """Whether a process that was started has ended."""
        return any(p is not None and p.poll() is not None for p in (self.app, self.sidecar))

    def log(self, name: str) -> str:
        """What the `app` or the `sidecar` has said."""
        return self._log_path(name).read_text()

    def stats(self, part: str) -> dict[str, int]:
        """The sidecar's counters and gauges whose names contain a text."""
        answer = self.admin(f"/stats?format=json&filter={part}")
        return {
            each["name"]: each["value"] for each in json.loads(answer)["stats"] if "name" in each
        }

    def admin(self, path: str) -> str:
        return get(f"http://{self.ip}:15000{path}")

    def ready(self) -> bool:
        """Whether the sidecar and the service say that they are."""
        try:
            return get(f"http://{self.ip}:15020/ready").strip() == "LIVE"
        except urllib.error.URLError:
            return False

    def _log_path(self, name: str) -> Path:
        # Apart: Envoy watches the folder of its configuration.
        return self.folder.with_name(f"{self.name}-{name}.log")

    def _run(self, command: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        kept = {k: v for k, v in child_environment().items() if k != "PAGEWIRE_MODEL"}
        with self._log_path(name).open("ab") as log:
            return subprocess.Popen(
                command, cwd=ROOT, env=kept, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_TIMEOUT_S) as answer:
        text: str = answer.read().decode()
        return text
