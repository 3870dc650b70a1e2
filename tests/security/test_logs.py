"""What people send and what the model answers is in no log, whatever the level."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

from tests.security.conftest import API_KEY
from tests.security.services import MODULES, Services

MARKER = "xyzzyplugh"
MESSAGES = [{"role": "user", "content": f"Say {MARKER}"}]
GOOD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": MARKER, "stop": [MARKER]}),
    ("/v1/completions", {"prompt": [MARKER] * 2, "logprobs": 2, "echo": True}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"choice": [MARKER]}}),
    ("/v1/chat/completions", {"messages": MESSAGES, "bad_words": [MARKER]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("/v1/responses", {"input": MARKER, "instructions": MARKER}),
    ("/tokenize", {"prompt": MARKER}),
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": MARKER, "temperature": MARKER}),
    ("/v1/completions", {"prompt": {MARKER: MARKER}}),
    ("/v1/completions", {"prompt": MARKER * 4000}),
    ("/v1/chat/completions", {"messages": [{"role": MARKER, "content": MARKER}]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": [{"type": MARKER}]}),
    ("/v1/chat/completions", {"messages": MESSAGES, "chat_template": "{{ 1/0 }}" + MARKER}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": f"({MARKER}"}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"json": {"type": MARKER}}}),
    ("/v1/completions", {"prompt": "a", "structured_outputs": {"grammar": f"root ::= {MARKER}"}}),
]


async def test_prompts_and_outputs_are_in_no_log_at_any_level(services: Services) -> None:
    trusted = ssl.create_default_context(cafile=str(services.authority.file))
    url = f"https://localhost:{services.http_port}"
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with httpx.AsyncClient(
        verify=trusted, timeout=120, base_url=url, headers=headers
    ) as client:
        for is_good, requests in ((True, GOOD), (False, BAD)):
            for path, body in requests:
                limit = {} if "tokenize" in path or "responses" in path else {"max_tokens": 3}
                answer = await client.post(path, json={"model": "smollm2", **limit, **body})
                assert (answer.status_code == 200) == is_good, f"{path} {body}: {answer.text}"
        await client.get(f"/v1/models/{MARKER}")
    logs = {role: services.log(role) for role in MODULES}
    assert all('"level": "debug"' in text for text in logs.values()), "nothing at debug level"
    for role, text in logs.items():
        assert MARKER not in text, role
        assert API_KEY not in text, role
