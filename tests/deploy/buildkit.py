"""Images built by the engine's BuildKit, over its API: the docker command wants a plugin for it."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests.deploy.container_engine import BUILD_TIMEOUT_S, TAG

_CHUNK_BYTES = 1 << 20


def build_with_buildkit(context: Path, target: str) -> str:
    """Build an image; return its name. Skips, loudly, an engine that is on another machine."""
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        pytest.skip("BuildKit is NOT tested: the engine has no socket on this machine")
    name = f"pagewire/{target}:{TAG}-buildkit"
    query = {"version": "2", "dockerfile": "deploy/Dockerfile", "target": target, "t": name}
    with tempfile.TemporaryFile() as archive:
        # BuildKit looks at 1 KiB, in which there is no more than the head of the other format.
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
            tar.add(context, arcname=".")
        archive.seek(0)
        answer = _post(host.removeprefix("unix://"), query, archive)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    problems = [line.get("error") or line.get("message") for line in lines]
    assert answer.status_code == 200 and not any(problems), [each for each in problems if each]
    assert any(line.get("id") == "moby.buildkit.trace" for line in lines), "another builder did it"
    return name


def _post(socket: str, query: dict[str, str], archive: IO[bytes]) -> httpx.Response:
    transport = httpx.HTTPTransport(uds=socket)
    with httpx.Client(transport=transport, timeout=BUILD_TIMEOUT_S) as client:
        return client.post(
            "http://engine/build",
            params=query,
            content=_chunks(archive),
            headers={"content-type": "application/x-tar"},
        )


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk
