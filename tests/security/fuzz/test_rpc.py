"""Every method of every port of four running services, with bytes that nobody should send.

No call may end as a bug of ours (INTERNAL, UNKNOWN), or say what is inside; none may hang; and the
services must go on answering. `FUZZ_ROUNDS` makes it longer, `FUZZ_SEED` another one: `make fuzz`.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest

from pagewire.kit.channels import open_channel
from pagewire.kit.tls import PeerTls
from pagewire.v1 import scheduler_pb2, scheduler_pb2_grpc
from tests.grpc_sending import was_ended_while_sending
from tests.security.conftest import API_KEY
from tests.security.fuzz.messages import payloads
from tests.security.reflection import Method, methods
from tests.security.services import MODULES, Services

ROUNDS = int(os.environ.get("FUZZ_ROUNDS", "1"))
SEED = int(os.environ.get("FUZZ_SEED", "20261130"))
CALL_TIMEOUT_S = 60.0
STREAM_TIMEOUT_S = 1.0
"""Of calls that may last for good, with what they were sent."""
CONCURRENT_CALLS = 32

INTERNALS = re.compile(
    r"Traceback|File \"|site-packages|\.py\b|<class|object at 0x|_pb2|/tmp/|/home/|Error\(|NoneType"
)
OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)
BUGS = ('"level": "error"', "Traceback")

PORTS = {
    "gateway": None,
    "tokenizer": "gateway",
    "scheduler": "gateway",
    "worker": "scheduler",
    "vllm-grpc": "smg",
    **{f"{role}-admin": "admin" for role in MODULES},
}


@asynccontextmanager
async def opened(services: Services, port: str) -> AsyncIterator[grpc.aio.Channel]:
    """A channel of somebody who may call the port."""
    caller, role = PORTS[port], port.removesuffix("-admin").replace("vllm-grpc", "scheduler")
    if caller is None:
        trusted = grpc.ssl_channel_credentials(services.authority.file.read_bytes())
        tls, target = PeerTls(trusted, "localhost"), services.listen[role]
    else:
        tls = services.authority.issue(caller, file=f"fuzz-{caller}").peer(role)
        addresses = services.admin if port.endswith("-admin") else services.listen
        target = services.vllm_grpc if port == "vllm-grpc" else addresses[role]
    async with open_channel(target, tls=tls) as channel:
        yield channel


async def ended(channel: grpc.aio.Channel, method: Method, sent: Sequence[bytes]) -> str | None:
    """Make a call and return what is wrong with how it ended."""
    may_last = method.server_streaming
    timeout_s = STREAM_TIMEOUT_S if may_last else CALL_TIMEOUT_S
    metadata = (("authorization", f"Bearer {API_KEY}"),)
    call = method.call(channel, sent, timeout=timeout_s, metadata=metadata)
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            if method.server_streaming:
                async for _ in call:
                    pass
            else:
                await call
    except grpc.aio.AioRpcError as error:
        if was_ended_while_sending(error):
            return None
        is_expected = may_last and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if error.code() in OURS or (
            error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not may_last
        ):
            return f"{error.code().name}: {error.details()}"
        if not is_expected and INTERNALS.search(error.details() or ""):
            return f"it says {error.details()!r}"
    except TimeoutError:
        call.cancel()
        return "no end"
    return None


def inputs(method: Method, generator: random.Random) -> list[list[bytes]]:
    """Return the messages of each call; a client's stream gets them one, several, in any order."""
    found = list(payloads(method.request, generator, 4 * ROUNDS))
    if not method.client_streaming:
        return [[payload] for payload in found]
    several = [generator.choices(found, k=generator.randint(2, 6)) for _ in range(6 * ROUNDS)]
    return [[], *([payload] for payload in found), *several]


async def answers(services: Services) -> str:
    """Ask the whole stack a question and return the text, which is the same each time."""
    trusted = ssl.create_default_context(cafile=str(services.authority.file))
    url = f"https://localhost:{services.http_port}/v1/completions"
    body = {"model": "smollm2", "prompt": "hello", "max_tokens": 8, "temperature": 0}
    async with httpx.AsyncClient(verify=trusted, timeout=CALL_TIMEOUT_S) as client:
        answer = await client.post(url, json=body, headers={"authorization": f"Bearer {API_KEY}"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@pytest.mark.timeout(1200 + 600 * ROUNDS)
@pytest.mark.parametrize("port", PORTS)
async def test_no_bytes_break_a_method(services: Services, port: str) -> None:
    before = await answers(services)
    wrong: list[str] = []
    limit = asyncio.Semaphore(CONCURRENT_CALLS)

    async def try_one(channel: grpc.aio.Channel, method: Method, sent: list[bytes]) -> None:
        async with limit:
            if (problem := await ended(channel, method, sent)) is not None:
                wrong.append(f"{method.path} {[each[:80] for each in sent]}: {problem}")

    async with opened(services, port) as channel:
        for method in await methods(channel, (("authorization", f"Bearer {API_KEY}"),)):
            generator = random.Random(SEED ^ zlib.crc32(method.path.encode()))
            tries = [try_one(channel, method, sent) for sent in inputs(method, generator)]
            await asyncio.gather(*tries)
    if port == "scheduler-admin":
        await _awake(services)
    assert wrong == []
    assert await answers(services) == before
    for role, process in services.processes.items():
        assert process.poll() is None, f"{role} ended:\n{services.log(role)[-3000:]}"
        bugs = [line for line in services.log(role).splitlines() if any(b in line for b in BUGS)]
        assert bugs == [], role


async def _awake(services: Services) -> None:
    """Undo what administration was told to do."""
    async with opened(services, "scheduler-admin") as channel:
        stub = scheduler_pb2_grpc.EngineAdminServiceStub(channel)
        await stub.WakeUp(scheduler_pb2.WakeUpRequest(), timeout=CALL_TIMEOUT_S)
        await stub.Resume(scheduler_pb2.ResumeRequest(), timeout=CALL_TIMEOUT_S)
