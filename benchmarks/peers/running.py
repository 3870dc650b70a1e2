"""Peers that run: started, asked, and ended with all their processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import httpx
import psutil

from benchmarks.peers.peer import Peer
from benchmarks.peers.results import Latencies
from benchmarks.peers.suite import ROOT, Suite
from benchmarks.peers.workloads import Workload

_POLL_S = 0.02
_MEMORY_POLL_S = 0.5
_RUN_TIMEOUT_S = 900
_END_TIMEOUT_S = 60
# Without byte code every start would be a first one.
_ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}


class Running:
    """A peer that answers."""

    def __init__(
        self, peer: Peer, suite: Suite, process: subprocess.Popen[bytes], url: str
    ) -> None:
        self.peer = peer
        self.model = str(suite.folder) if peer.is_named_by_folder else suite.model_name
        self.url = url
        self.first_token_s = 0.0
        """From the start of its process to its first token."""
        self.max_pss_bytes = 0
        """Of all its processes, shared pages divided among those that share them."""
        self._is_watched = False
        self._process = process
        self._is_ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch_memory, daemon=True)
        self._watcher.start()

    def measure(self, workload: Workload, seed: int) -> tuple[float, Latencies]:
        """Measure one run of a workload.

        Returns:
            Its figure, and what its clients saw: empty for a library.

        Raises:
            RuntimeError: The peer did not answer all of it.
        """
        if self.peer.is_library:
            return workload.of_seconds(self._ask_library(workload, seed)), {}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            flags = [*workload.bench_flags(seed, Path(folder)), *self.peer.bench_flags]
            command = [sys.executable, "-m", "pagewire.cli", "bench", "serve"]
            told = [
                f"--base-url={self.url}",
                f"--model={self.model}",
                "--ignore-eos",
                "--metric-percentiles=50,99",
            ]
            done = subprocess.run(
                [*command, *told, f"--output-file={file}", *flags],
                cwd=ROOT,
                timeout=_RUN_TIMEOUT_S,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError((done.stderr or done.stdout)[-400:].strip())
            figures = json.loads(file.read_text())["figures"]
            latencies = {
                name: figures["latencies_ms"][name]["percentiles"]
                for name in ("ttft", "itl")
                if figures["latencies_ms"].get(name)
            }
            return workload.figure(figures), latencies

    def _ask_library(self, workload: Workload, seed: int) -> float:
        question = {"prompts": workload.prompts(seed), "max_tokens": workload.output_len}
        return float(self._exchange(question)["seconds"])

    def _exchange(self, question: dict[str, Any] | None) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise AssertionError("a library is asked through its standard input")
        if question is not None:
            stdin.write(json.dumps(question).encode() + b"\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"it ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_first_token(self, began_s: float) -> None:
        """Ask until there is a token; set how long that took.

        Raises:
            RuntimeError: It ended, or took too long.
        """
        if self.peer.is_library:
            self._exchange(None)
            self._exchange({"prompts": [[1000, 1001, 1002]], "max_tokens": 1})
        else:
            self._poll(began_s + self.peer.start_timeout_s)
        self.first_token_s = time.perf_counter() - began_s

    def _poll(self, until_s: float) -> None:
        body: dict[str, Any] = {"model": self.model, "max_tokens": 1}
        if "--backend=openai-chat" in self.peer.bench_flags:
            path = "/v1/chat/completions"
            body["messages"] = [{"role": "user", "content": "Hello"}]
        else:
            path = "/v1/completions"
            body["prompt"] = "Hello"
        with httpx.Client(base_url=self.url, timeout=120) as client:
            while time.perf_counter() < until_s:
                if self._process.poll() is not None:
                    raise RuntimeError(f"it ended with code {self._process.returncode}")
                try:
                    if client.post(path, json=body).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # nobody listens yet
                time.sleep(_POLL_S)
        raise RuntimeError(f"no token within {self.peer.start_timeout_s:.0f} s")

    def _watch_memory(self) -> None:
        while not self._is_ended.wait(_MEMORY_POLL_S):
            if self._is_watched:
                self._look_at_memory()

    def _look_at_memory(self) -> None:
        self.max_pss_bytes = max(self.max_pss_bytes, _pss_bytes(self._process.pid))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at its memory meanwhile and at the end.

        A look takes tens of milliseconds from whoever is looked at: not while a run is timed.
        """
        self._is_watched = True
        try:
            yield
            self._look_at_memory()
        finally:
            self._is_watched = False

    def end(self) -> None:
        """End all its processes, and wait for the first of them."""
        self._is_ended.set()
        self._watcher.join()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextmanager
def running(peer: Peer, suite: Suite, log: Path) -> Iterator[Running]:
    """Start a peer and wait for its first token; end it on leaving.

    Args:
        peer: Which.
        suite: What it is to serve.
        log: File for what it says.

    Raises:
        RuntimeError: It did not start.
    """
    port = _free_port()
    pipe = subprocess.PIPE if peer.is_library else None
    with log.open("wb") as said:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            peer.command(port, suite),
            stdin=pipe or subprocess.DEVNULL,
            stdout=pipe or said,
            stderr=said,
            cwd=ROOT,
            env={**_ENVIRONMENT, **peer.env},
            start_new_session=True,
        )
    one = Running(peer, suite, process, f"http://127.0.0.1:{port}")
    try:
        one.wait_first_token(began_s)
        yield one
    finally:
        one.end()


def end_servers_on_sigterm() -> None:
    """Have SIGTERM leave by way of `running`, which ends what it started; its own way does not."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice: the way out is not cut short
    sys.exit(128 + number)


def _pss_bytes(pid: int) -> int:
    total = 0
    try:
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.Error:
        pass  # one ended meanwhile: the next look has the rest
    return total


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port
