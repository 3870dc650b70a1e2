"""Tests of `chat`, `complete` and `healthcheck` as processes, with a fake gateway in this one."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psutil
import pytest

from pagewire.kit.pem import PemPaths
from pagewire.kit.port_security import PortSecurity
from tests.e2e.stack import ROOT
from tests.fakes.fake_gateway import FakeInferenceService, running_gateway
from tests.fakes.fake_service import write_fake_services
from tests.security.authority import Authority


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
async def gateway() -> AsyncIterator[tuple[FakeInferenceService, str]]:
    async with running_gateway() as running:
        yield running


async def start(*arguments: str, **env: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pagewire.cli", *arguments,
        stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT, env={**os.environ, **env},
    )  # fmt: skip


async def pagewire(*arguments: str, text: str = "", **env: str) -> Result:
    process = await start(*arguments, **env)
    out, err = await process.communicate(text.encode())
    return Result(process.returncode or 0, out.decode(), err.decode())


async def test_one_message_gets_one_answer(gateway):
    service, target = gateway
    result = await pagewire("chat", "hello there", "--target", target)
    assert (result.code, result.out, result.err) == (0, "hello there \n", "")
    assert [(m.role, m.content) for m in service.requests[0].messages] == [("user", "hello there")]


async def test_flags_become_parameters(gateway):
    service, target = gateway
    flags = ["--temperature=0", "--seed=7", "--top-p=0.5", "--max-tokens=9", "--api-key=k"]
    await pagewire("chat", "hi", "--target", target, "--system=Be brief.", *flags)
    request = service.requests[0]
    assert request.messages[0].role == "system" and request.messages[0].content == "Be brief."
    assert (request.sampling.temperature, request.sampling.seed) == (0, 7)
    assert (request.sampling.top_p, request.stopping.max_tokens) == (0.5, 9)
    assert service.authorization == ["Bearer k"]


async def test_an_answer_is_greedy_and_what_else_is_not_given_is_left_to_the_model(gateway):
    service, target = gateway
    await pagewire("chat", "hi", "--target", target)
    sampling, stopping = service.requests[0].sampling, service.requests[0].stopping
    assert sampling.temperature == 0 and not sampling.HasField("seed")
    assert not sampling.HasField("top_p")
    assert not stopping.HasField("max_tokens")


async def test_a_conversation_carries_its_history(gateway):
    service, target = gateway
    result = await pagewire("chat", "--target", target, text="one\n\ntwo\n")
    assert (result.code, result.out) == (0, "one \ntwo \n")
    roles = [(m.role, m.content) for m in service.requests[1].messages]
    assert roles == [("user", "one"), ("assistant", "one "), ("user", "two")]


async def test_a_refused_message_does_not_end_the_conversation_nor_stay_in_it(gateway):
    service, target = gateway
    result = await pagewire("chat", "--target", target, text="refuse\ntwo\n")
    assert (result.code, result.out) == (0, "two \n")
    assert result.err == "error: the text is refused\n"
    assert [m.content for m in service.requests[1].messages] == ["two"]


async def test_a_refused_message_is_one_line_and_exit_code_1(gateway):
    result = await pagewire("chat", "refuse", "--target", gateway[1])
    assert (result.code, result.out, result.err) == (1, "", "error: the text is refused\n")


async def test_an_interrupt_cancels_the_request(gateway):
    service, target = gateway
    process = await start("chat", "hang on", "--target", target)
    assert process.stdout is not None
    assert await process.stdout.readexactly(5) == b"hang "
    process.send_signal(signal.SIGINT)
    await service.cancelled.wait()
    _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")


async def test_an_interrupt_in_a_conversation_ends_only_the_answer(gateway):
    service, target = gateway
    process = await start("chat", "--target", target)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"hang\n")
    assert await process.stdout.readexactly(5) == b"hang "
    process.send_signal(signal.SIGINT)
    await service.cancelled.wait()
    out, _ = await process.communicate(b"two\n")
    assert (process.returncode, out) == (0, b"\ntwo \n")
    assert [m.content for m in service.requests[1].messages] == ["hang", "hang ", "two"]


async def test_a_text_is_continued(gateway):
    service, target = gateway
    result = await pagewire("complete", "one two", "--target", target, "--max-tokens=3")
    assert (result.code, result.out) == (0, "one two \n")
    assert service.requests[0].text == "one two" and service.requests[0].stopping.max_tokens == 3


async def test_a_gateway_that_is_not_there_is_one_clear_line():
    result = await pagewire("chat", "hi", "--target", "127.0.0.1:1")
    assert result.code == 1
    assert result.err == (
        "error: no gateway answers at 127.0.0.1:1; start one with `pagewire serve`\n"
    )


async def test_a_gateway_with_tls_is_talked_to(tmp_path):
    its = Authority(tmp_path, "ca").issue("gateway.test")
    paths = PemPaths(its.cert, its.key, None, ("", "", ""))
    trusting = [f"--root-certificates={its.ca}", "--tls-server-name=gateway.test"]
    async with running_gateway(public=PortSecurity(paths, is_public=True)) as (_, target):
        result = await pagewire("chat", "hello", "--target", target, *trusting)
        assert (result.code, result.out, result.err) == (0, "hello \n", "")
        result = await pagewire("complete", "hello", "--target", target, "--tls")
        assert result.err == (
            f"error: no gateway answers at {target} by TLS, or its certificate is not trusted\n"
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chat", "hi", "--max-tokens=0"], "error: --max-tokens 0: must be at least 1"),
        (["chat", "hi", "--target=nonsense"], "error: --target nonsense: must be host:port"),
        (["complete"], "error: the following arguments are required: text"),
        (["healthcheck", "--timeout=0"], "error: --timeout 0: must be positive"),
        (["juggle"], "error: no command 'juggle'"),
    ],
)
async def test_wrong_arguments_are_one_line_and_exit_code_2(arguments, message):
    result = await pagewire(*arguments)
    assert result.code == 2
    assert result.err.startswith(message) and result.err.count("\n") == 1


async def test_a_healthcheck_tells_by_its_exit_code(gateway):
    result = await pagewire("healthcheck", "--target", gateway[1])
    assert (result.code, result.out) == (0, f"{gateway[1]} is SERVING\n")


async def test_a_healthcheck_tells_why_a_service_does_not_serve():
    async with running_gateway(serving=False) as (_, target):
        ready = await pagewire("healthcheck", "--target", target)
        alive = await pagewire("healthcheck", "--target", target, "--service=any")
    assert (ready.code, ready.err) == (1, f"{target} is NOT_SERVING: starting\n")
    assert alive.code == 0


async def test_a_healthcheck_of_another_service_fails(gateway):
    result = await pagewire("healthcheck", "--target", gateway[1], "--service=scheduler")
    assert result.code == 1 and "SERVICE_UNKNOWN" in result.err


async def test_a_stack_of_our_own_answers_and_is_stopped(tmp_path):
    # Nothing may listen on the default port, so the command is told of another default.
    program = (
        "import sys; from pagewire.cli import session\n"
        "session.DEFAULT_TARGET = '127.0.0.1:1'\n"
        "from pagewire.cli.__main__ import main; sys.exit(main(['chat', 'hello']))\n"
    )
    services = write_fake_services(tmp_path / "services")
    base = tempfile.mkdtemp(prefix="pw-")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=PIPE, stderr=PIPE, cwd=ROOT,
        env={
            **os.environ, "PYTHONPATH": f"{services}{os.pathsep}{ROOT}", "XDG_RUNTIME_DIR": base
        },
    )  # fmt: skip
    out, err = await process.communicate()
    assert (process.returncode, out) == (0, b"hello \n"), err
    assert b"starting a stack of our own" in err
    assert not [p for p in psutil.process_iter() if _environ(p).get("XDG_RUNTIME_DIR") == base]
    os.rmdir(base)


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return {}
