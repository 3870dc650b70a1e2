"""The page's files as they are served."""

from __future__ import annotations

import re

import httpx

from gateway.config import AccessConfig
from gateway.http.page.files import page_files
from tests.gateway.conftest import Gateway, GatewayFactory

PATHS = ["/", *sorted(f"/static/{name}" for name in page_files())]
KINDS = {"/": "html", "html": "html", "css": "css", "js": "javascript", "svg": "svg"}
NOT_SERVED = (
    *("nothing.js", "", "../routes.py", "%2e%2e/routes.py", "/etc/passwd", "a/b.js"),
    *("index.html/", "%00"),
)
OWN_PATH = re.compile(r'(?:src|href)="([^"#]+)"|from "([^"]+)"')


def policy_of(answer: httpx.Response) -> dict[str, str]:
    directives = answer.headers["content-security-policy"].split(";")
    return {name: rest for name, _, rest in (each.strip().partition(" ") for each in directives)}


async def test_each_file_is_served_with_its_type_and_what_protects_it(gateway: Gateway) -> None:
    for path in PATHS:
        answer = await gateway.http.get(path)
        kind = KINDS[path.rpartition(".")[2]]
        assert (answer.status_code, kind in answer.headers["content-type"]) == (200, True)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-request-id"]
        policy = policy_of(answer)
        assert policy["default-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["form-action"] == "'none'"
        assert "script" in policy["require-trusted-types-for"]
        head = await gateway.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(answer.content))


async def test_a_browser_that_has_a_file_is_told_so(gateway: Gateway) -> None:
    for path in PATHS:
        first = await gateway.http.get(path)
        etag = first.headers["etag"]
        assert first.headers["cache-control"] == "no-cache"
        for known in (etag, f'"other", W/{etag}', "*"):
            again = await gateway.http.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        other = await gateway.http.get(path, headers={"if-none-match": '"other"'})
        assert (other.status_code, other.content) == (200, first.content)


async def test_nothing_else_is_served(gateway: Gateway) -> None:
    for name in NOT_SERVED:
        answer = await gateway.http.get(f"/static/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, 404), name


async def test_only_reading_is_allowed(gateway: Gateway) -> None:
    for path in ("/", "/static/app.js"):
        assert (await gateway.http.post(path)).status_code == 405


async def test_files_refer_only_to_files_that_are_served(gateway: Gateway) -> None:
    targets = set()
    for path in PATHS:
        found = OWN_PATH.findall((await gateway.http.get(path)).text)
        targets |= {next(filter(None, groups)) for groups in found}
    assert {"/", "/static/style.css", "/static/app.js", "/static/api.js"} <= targets <= {*PATHS}


async def test_the_page_needs_no_key_and_no_engine(run_gateway: GatewayFactory) -> None:
    access = AccessConfig(api_key=("s1",))
    async with run_gateway(access=access, wait=False, schedulers=("127.0.0.1:1",)) as gateway:
        for path in PATHS:
            assert (await gateway.http.get(path)).status_code == 200
        assert (await gateway.http.get("/v1/models")).status_code == 401
