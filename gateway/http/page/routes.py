"""`GET /` and `GET /static/NAME`: the page's files, for browsers that must not trust their content.

The policy lets the page load only what this server has, run no text as code or markup, and be
framed by nobody. Browsers keep the files but ask each time whether they are still right, so that a
new version of the server never meets half of an old page.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.http.page.files import PageFile, page_files

_INDEX = "index.html"
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
        " object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_routes() -> list[Route]:
    """Return the routes; the files are read now.

    Raises:
        FileNotFoundError: The installation lacks the page.
    """
    files = page_files()
    if _INDEX not in files:
        raise FileNotFoundError(f"the package gateway.http.page has no {_INDEX}; install it again")

    async def index(request: Request) -> Response:
        return _answer(request, files[_INDEX])

    async def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404)
        return _answer(request, file)

    return [Route("/", index), Route("/static/{name:path}", static)]


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**_HEADERS, "etag": file.etag}
    if _is_known(request.headers.get("if-none-match", ""), file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)


def _is_known(if_none_match: str, etag: str) -> bool:
    """Whether the client has the file already; tags are compared weakly, as for every GET."""
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in tags or "*" in tags
