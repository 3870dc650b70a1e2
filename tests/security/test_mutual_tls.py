"""Mutual TLS over four processes: it works with the right certificates, and with no others."""

from __future__ import annotations

import ssl

import grpc
import httpx
import pytest
from google.protobuf import empty_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from pagewire.client.aio import AsyncClient
from pagewire.client.transport import Tls
from pagewire.kit.channels import open_channel
from pagewire.kit.errors import from_rpc_error
from pagewire.kit.tls import PeerTls
from pagewire.v1 import admin_pb2, admin_pb2_grpc
from tests.grpc_sending import with_its_status
from tests.security.authority import Identity
from tests.security.conftest import API_KEY
from tests.security.services import MODULES, Services, code_of, health_code

INTERNAL = ("tokenizer", "worker", "scheduler")
# Who needs to call whom; smg is a gateway that is not ours.
CALLERS = {
    "tokenizer": {"gateway", "scheduler"},
    "worker": {"scheduler"},
    "scheduler": {"gateway"},
    "vllm-grpc": {"smg"},
    **{f"{role}-admin": {"admin"} for role in MODULES},
}


def ports(services: Services) -> dict[str, tuple[str, str]]:
    """Every internal port: its address, and the role of its certificate."""
    found = {role: (services.listen[role], role) for role in INTERNAL}
    found |= {f"{role}-admin": (services.admin[role], role) for role in MODULES}
    return {**found, "vllm-grpc": (services.vllm_grpc, "scheduler")}


async def test_a_chat_goes_through_all_four(services: Services) -> None:
    trusted = ssl.create_default_context(cafile=str(services.authority.file))
    url = f"https://localhost:{services.http_port}/v1/chat/completions"
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 4,
        "ignore_eos": True,
    }
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with httpx.AsyncClient(verify=trusted, timeout=120) as client:
        answer = await client.post(url, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4


async def test_a_grammar_gets_its_vocabulary_from_the_tokenizer(services: Services) -> None:
    trusted = ssl.create_default_context(cafile=str(services.authority.file))
    url = f"https://localhost:{services.http_port}/v1/completions"
    body = {"model": "smollm2", "prompt": "Hi", "structured_outputs": {"choice": ["yes", "no"]}}
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with httpx.AsyncClient(verify=trusted, timeout=120) as client:
        answer = await client.post(url, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] in ("yes", "no")


async def test_the_sdk_goes_through_all_four(services: Services) -> None:
    tls = Tls.from_files(services.authority.file, server_name="localhost")
    async with AsyncClient(services.listen["gateway"], api_key=API_KEY, tls=tls) as client:
        assert [model.id for model in await client.list_models()] == ["smollm2"]


def bad_identities(services: Services) -> dict[str, Identity]:
    """Certificates that nobody may be let in with, of those who may call otherwise."""
    names = ("gateway", "scheduler", "admin", "smg")
    return {
        "of another authority": services.other_authority.issue(*names, file="foreign"),
        "expired": services.authority.issue(*names, file="expired", days=-1),
    }


async def test_no_port_answers_without_a_certificate_of_the_authority(services: Services) -> None:
    trusted = services.authority.file.read_bytes()
    for name, (address, role) in ports(services).items():
        without = PeerTls(grpc.ssl_channel_credentials(trusted), role)
        refused = {"plain text": None, "no certificate": without}
        for what, identity in bad_identities(services).items():
            pair = (identity.key.read_bytes(), identity.cert.read_bytes())
            refused[what] = PeerTls(grpc.ssl_channel_credentials(trusted, *pair), role)
        for what, tls in refused.items():
            code = await health_code(address, tls)
            assert code is grpc.StatusCode.UNAVAILABLE, f"{name}: {what}"
        right = services.authority.issue("anybody").peer(role)
        assert await health_code(address, right) is grpc.StatusCode.OK, name


async def is_let_in(channel: grpc.aio.Channel) -> bool:
    """Ask for the services of a port; a refusal must say what it is."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    try:
        answer = await with_its_status(lambda: stub.ServerReflectionInfo(iter([question])).read())
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert from_rpc_error(error).reason == "CALLER_NOT_ALLOWED"
        return False
    return answer is not grpc.aio.EOF


async def test_every_port_has_its_callers_and_no_others(services: Services) -> None:
    for name, (address, role) in ports(services).items():
        for caller in ("gateway", "scheduler", "worker", "tokenizer", "admin", "smg", "anybody"):
            tls = services.authority.issue(caller, file=f"as-{caller}").peer(role)
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with open_channel(address, tls=tls, options=options) as channel:
                is_allowed = await is_let_in(channel)
            assert is_allowed == (caller in CALLERS[name]), f"{caller} at {name}"


async def test_a_server_whose_certificate_has_another_role_is_not_talked_to(
    services: Services,
) -> None:
    gateway = services.authority.issue("gateway", file="as-gateway")
    code = await health_code(services.listen["scheduler"], gateway.peer("worker"))
    assert code is grpc.StatusCode.UNAVAILABLE


async def test_administration_is_for_administrators(services: Services) -> None:
    for caller, code in (("gateway", "PERMISSION_DENIED"), ("admin", "OK")):
        tls = services.authority.issue(caller, file=f"as-{caller}").peer("worker")
        async with open_channel(services.admin["worker"], tls=tls) as channel:
            request = admin_pb2.SetLogLevelRequest(level="debug")
            call = admin_pb2_grpc.AdminServiceStub(channel).SetLogLevel(request, timeout=30)
            assert (await code_of(call)).name == code


async def test_refusals_are_logged_and_few(services: Services) -> None:
    for _ in range(20):
        tls = services.authority.issue("stranger").peer("worker")
        async with open_channel(services.listen["worker"], tls=tls) as channel:
            method = channel.unary_unary("/pagewire.v1.WorkerService/GetStatus")
            await code_of(method(empty_pb2.Empty().SerializeToString(), timeout=30))
    lines = services.log("worker").splitlines()
    refusals = [line for line in lines if "caller_refused" in line]
    assert 1 <= len(refusals) <= 6  # a minute has one


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_the_public_port_is_not_served_in_plain_text(services: Services, path: str) -> None:
    async with httpx.AsyncClient(timeout=60) as client:
        with pytest.raises(httpx.HTTPError):
            await client.get(f"http://127.0.0.1:{services.http_port}{path}")
