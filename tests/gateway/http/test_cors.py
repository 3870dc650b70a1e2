"""What browsers are told about pages of other origins."""

from __future__ import annotations

import httpx
import pytest

from gateway.config import AccessConfig, CorsConfig
from tests.fakes.fake_scheduler import MODEL
from tests.gateway.conftest import GatewayFactory

COMPLETIONS = "/v1/completions"
PAGE = {"origin": "https://a.example"}
PREFLIGHT = PAGE | {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}
SOME = CorsConfig(
    allowed_origins=("https://a.example",),
    allowed_methods=("POST",),
    allowed_headers=("authorization",),
)


def allowed(answer: httpx.Response) -> str | None:
    return answer.headers.get("access-control-allow-origin")


async def test_by_default_every_page_may_ask_and_read_all_answers(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway(access=AccessConfig(api_key=("s1",))) as gateway:
        preflight = await gateway.http.options(COMPLETIONS, headers=PREFLIGHT)
        assert (preflight.status_code, allowed(preflight)) == (200, "*")
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert preflight.headers["x-request-id"]
        for method, path, status in (
            ("GET", "/health", 200), ("POST", COMPLETIONS, 401), ("GET", "/nope", 401),
        ):  # fmt: skip
            answer = await gateway.http.request(method, path, headers=PAGE)
            assert (answer.status_code, allowed(answer)) == (status, "*")
            exposed = answer.headers["access-control-expose-headers"]
            assert {"x-request-id", "retry-after", "x-error-reason"} <= set(exposed.split(", "))
        assert allowed(await gateway.http.get("/health")) is None


async def test_only_named_origins_methods_and_headers_pass(run_gateway: GatewayFactory) -> None:
    async with run_gateway(cors=SOME) as gateway:
        good = await gateway.http.options(COMPLETIONS, headers=PREFLIGHT)
        assert (good.status_code, allowed(good)) == (200, "https://a.example")
        for change in (
            {"origin": "https://b.example"},
            {"access-control-request-method": "DELETE"},
            {"access-control-request-headers": "x-other"},
        ):
            refused = await gateway.http.options(COMPLETIONS, headers=PREFLIGHT | change)
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (403, 403)
            assert error["type"] == "invalid_request_error"
            assert refused.headers["x-request-id"]
        other = await gateway.http.get("/health", headers={"origin": "https://b.example"})
        assert (other.status_code, allowed(other)) == (200, None)


async def test_with_credentials_the_origin_is_named(run_gateway: GatewayFactory) -> None:
    async with run_gateway(cors=CorsConfig(allow_credentials=True)) as gateway:
        answer = await gateway.http.get("/health", headers=PAGE)
        assert allowed(answer) == "https://a.example"
        assert answer.headers["access-control-allow-credentials"] == "true"


async def test_without_origins_no_page_is_let_in(run_gateway: GatewayFactory) -> None:
    async with run_gateway(cors=CorsConfig(allowed_origins=())) as gateway:
        assert (await gateway.http.options(COMPLETIONS, headers=PREFLIGHT)).status_code == 403
        assert allowed(await gateway.http.get("/health", headers=PAGE)) is None


@pytest.mark.parametrize("stream", [True, False])
async def test_answers_of_generations_may_be_read(
    run_gateway: GatewayFactory, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "stream": stream}
    async with run_gateway(cors=SOME) as gateway:
        answer = await gateway.http.post(COMPLETIONS, json=body, headers=PAGE)
        assert (answer.status_code, allowed(answer)) == (200, "https://a.example")


async def test_an_options_request_that_is_no_preflight_is_405_in_openais_shape(
    run_gateway: GatewayFactory,
) -> None:
    async with run_gateway(access=AccessConfig(api_key=("s1",))) as gateway:
        answer = await gateway.http.options(COMPLETIONS)
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, 405)
        assert answer.headers["x-request-id"]
