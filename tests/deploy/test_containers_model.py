"""Images with PyTorch on a real Docker Engine: the embedded model answers, and outlives kills."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.deploy.buildkit import build_with_buildkit
from tests.deploy.container_engine import (
    COMPILER_IMAGE,
    PYTHON_IMAGE,
    ROOT,
    TAG,
    build,
    docker,
    make_context,
    require_engine,
    require_images,
    run,
)
from tests.deploy.container_stack import ComposeStack, compose_stack

require_engine()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TARGETS = ("gateway", "tokenizer", "scheduler", "worker")
# Continuation after a fault is the same token for token in float32.
OVERRIDE = {"services": {"scheduler": {"environment": {"PAGEWIRE_DTYPE": "float32"}}}}
QUESTIONS = (
    "What is the capital of France?",
    "Name three colours.",
    "Why is the sky blue?",
    "What is water made of?",
)
ANSWER_TIMEOUT_S = 600.0


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    require_images(PYTHON_IMAGE, COMPILER_IMAGE)
    context = make_context(
        tmp_path_factory.mktemp("model"), ("gateway", "tokenizer", "scheduler", "worker")
    )
    names = [build(context, target) for target in TARGETS]
    yield context
    docker("image", "rm", "--force", "--no-prune", *names)


@pytest.fixture(scope="module")
def stack(images: Path) -> Iterator[ComposeStack]:
    with compose_stack(images, {}, OVERRIDE) as stack:
        stack.up()
        yield stack


def test_the_readmes_curl_gets_its_answer(stack: ComposeStack) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("the README's curl line is NOT tested, curl is missing")
    readme = (ROOT / "README.md").read_text()
    text = re.search(r"^curl http://127\.0\.0\.1:8000/v1/chat.*?'\s*$", readme, re.M | re.S)
    assert text is not None
    line = text[0].replace("http://127.0.0.1:8000", stack.http_url)
    answer = json.loads(run([curl, "--silent", "--show-error", *shlex.split(line)[1:]]).stdout)
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_the_kernels_are_compiled_in_the_image(images: Path) -> None:
    assert has_kernels(f"pagewire/worker:{TAG}")


def test_buildkit_compiles_them_too(images: Path) -> None:
    name = build_with_buildkit(images, "worker")
    try:
        assert has_kernels(name)
    finally:
        docker("image", "rm", "--force", "--no-prune", name)


def test_a_killed_worker_changes_no_answer(stack: ComposeStack) -> None:
    alone = [asyncio.run(ask(stack, question)) for question in QUESTIONS]
    stack.up(scheduler=2, worker=2)
    assert asyncio.run(ask_all_and_kill(stack)) == alone


def has_kernels(image: str) -> bool:
    code = "from worker_svc.cpu.build import is_current; print(is_current())"
    return docker("run", "--rm", "--entrypoint=python", image, "-c", code).strip() == "True"


async def ask_all_and_kill(stack: ComposeStack) -> list[str]:
    """Ask all questions at once, kill a worker when all answers have begun; return them."""
    begun = [asyncio.Event() for _ in QUESTIONS]
    tasks = [
        asyncio.create_task(ask(stack, question, event))
        for question, event in zip(QUESTIONS, begun, strict=True)
    ]
    await asyncio.gather(*(event.wait() for event in begun))
    assert not any(task.done() for task in tasks)
    await asyncio.to_thread(docker, "kill", stack.containers("worker")[0])
    return list(await asyncio.gather(*tasks))


async def ask(stack: ComposeStack, question: str, begun: asyncio.Event | None = None) -> str:
    """Ask a question; say when the answer begins, and return all of it."""
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 128,
        "ignore_eos": True,
        "stream": True,
    }
    text = ""
    url = f"{stack.http_url}/v1/chat/completions"
    async with (
        httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as client,
        client.stream("POST", url, json=body) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
            if text and begun is not None:
                begun.set()
    return text
