"""What each port serves, and that nothing of it is there for who has no key."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import grpc
import httpx
import pytest
from starlette.routing import Route, Router

from gateway.config import RequestLimits
from gateway.http.app import HttpSettings, build_app
from pagewire.kit.channels import open_channel
from pagewire.kit.tls import PeerTls
from tests.grpc_sending import with_its_status
from tests.security.conftest import API_KEY
from tests.security.reflection import Method, methods, service_names
from tests.security.services import Services

OF_EVERY_PORT = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
SERVED = {
    "tokenizer": {"pagewire.v1.TokenizerService"},
    "worker": {"pagewire.v1.WorkerService"},
    "scheduler": {"pagewire.v1.SchedulerService"},
}
ADMINISTRATION = {
    "gateway": {"pagewire.v1.AdminService"},
    "tokenizer": {"pagewire.v1.AdminService"},
    "worker": {"pagewire.v1.AdminService", "pagewire.v1.WorkerAdminService"},
    "scheduler": {"pagewire.v1.AdminService", "pagewire.v1.EngineAdminService"},
}
CALLER = {"tokenizer": "gateway", "worker": "scheduler", "scheduler": "gateway"}
# That the gateway lives, and the page, which asks for a key itself.
OPEN_ROUTES = {"/", "/health", "/ping", "/static/{name:path}"}


@asynccontextmanager
async def public(services: Services) -> AsyncIterator[grpc.aio.Channel]:
    """The gateway's public gRPC API."""
    credentials = grpc.ssl_channel_credentials(services.authority.file.read_bytes())
    target = services.listen["gateway"]
    async with open_channel(target, tls=PeerTls(credentials, "localhost")) as channel:
        yield channel


@pytest.mark.parametrize("role", SERVED)
async def test_a_port_for_data_has_no_administration(services: Services, role: str) -> None:
    tls = services.authority.issue(CALLER[role], file="caller").peer(role)
    async with open_channel(services.listen[role], tls=tls) as channel:
        assert await service_names(channel) == SERVED[role] | OF_EVERY_PORT


@pytest.mark.parametrize("role", ADMINISTRATION)
async def test_administration_has_a_port_of_its_own(services: Services, role: str) -> None:
    tls = services.authority.issue("admin").peer(role)
    async with open_channel(services.admin[role], tls=tls) as channel:
        assert await service_names(channel) == ADMINISTRATION[role] | OF_EVERY_PORT


async def test_the_port_of_vllm_engine_has_nothing_else(services: Services) -> None:
    tls = services.authority.issue("smg").peer("scheduler")
    async with open_channel(services.vllm_grpc, tls=tls) as channel:
        assert await service_names(channel) == {"vllm.grpc.engine.VllmEngine"} | OF_EVERY_PORT


async def first_code(channel: grpc.aio.Channel, method: Method) -> grpc.StatusCode:
    """Call a method without a key; OK, if there is a first answer."""

    async def ask() -> None:
        call = method.call(channel, [b""], timeout=60)
        await (call.read() if method.server_streaming else call)
        call.cancel()

    try:
        await with_its_status(ask)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_every_public_method_but_health_needs_a_key(services: Services) -> None:
    key = (("authorization", f"Bearer {API_KEY}"),)
    async with public(services) as channel:
        found = await methods(channel, key)
        assert {m.path.split("/")[1] for m in found} == {
            "pagewire.v1.InferenceService"
        } | OF_EVERY_PORT
        for method in found:
            code = await first_code(channel, method)
            is_open = method.path.startswith("/grpc.health.v1.Health/")
            assert (code is grpc.StatusCode.UNAUTHENTICATED) != is_open, method.path


async def test_every_route_but_health_and_the_page_needs_a_key(services: Services) -> None:
    trusted = ssl.create_default_context(cafile=str(services.authority.file))
    base = f"https://localhost:{services.http_port}"
    app = build_app(Mock(), Mock(), Mock(), HttpSettings(RequestLimits(), 1.0, tokenizer_info=True))
    assert isinstance(app, Router) and len(app.routes) > len(OPEN_ROUTES)
    async with httpx.AsyncClient(verify=trusted, timeout=120, base_url=base) as client:
        for route in app.routes:
            assert isinstance(route, Route), "a kind of route that this test does not know"
            path = route.path.replace("{name:path}", "x").replace("{model:path}", "smollm2")
            path = path.replace("{response_id}", "resp_1")
            for method in route.methods or ():
                answer = await client.request(method, path)
                if route.path in OPEN_ROUTES:
                    assert answer.status_code in (200, 404), f"{method} {path}"
                else:
                    assert answer.status_code == 401, f"{method} {path}"
