"""A stream says what a whole answer says: text, tokens, logprobs, the reason of the end, usage.

200 prompts (50 in the short form) on the simulated worker with the tokenizer of SmolLM2: outputs
are drawn among the tokens of some script, so characters of several tokens come torn and mixed up,
which is no UTF-8.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from pagewire.model_source import resolve_model
from tests.e2e.completions import http_client, post
from tests.e2e.stack import Stack
from tokenizer_svc.gguf_tokenizer import convert_gguf

MAX_AT_ONCE = 16
EOS = "<|im_end|>"
SCRIPTS = (
    "👩\u200d👩\u200d👧\u200d👦 🏳\ufe0f\u200d🌈 👍🏽 🇪🇺 ❤\ufe0f\u200d🔥 🫠",
    "مرحبا بالعالم، كيف حالك اليوم؟ שלום עולם",
    "今日は良い天気ですね。你好\uff0c世界\uff01 안녕하세요 세계",
    "naïve café \u2013 “quotes”, ﬁne, e\u0301, Ω≈ç√, a\u0085b\u2028c",
    "The end.\n\nStop here, or there: the end. The End!\r\n\tend",
)
PATHS = ("/v1/completions", "/v1/chat/completions")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(
        convert_gguf(resolve_model("smollm2").path)["tokenizer.json"].decode()
    )


def make_request(number: int, tokenizer: Tokenizer) -> tuple[str, dict[str, Any]]:
    """Path and body of a request; it has no stop strings yet."""
    rng = random.Random(number)
    script = rng.choice(SCRIPTS)
    ids = sorted({*tokenizer.encode(script).ids, *tokenizer.encode(rng.choice(SCRIPTS)).ids})
    eos = tokenizer.token_to_id(EOS)
    body: dict[str, Any] = {
        "seed": number,
        "temperature": 1.0,
        "max_tokens": rng.randint(1, 32),
        "min_tokens": rng.choice([0, 0, 1]),
        "allowed_token_ids": [*ids, eos] if rng.random() < 0.5 else ids,
        "skip_special_tokens": rng.random() < 0.7,
        "include_stop_str_in_output": rng.random() < 0.3,
        "return_token_ids": True,
        "n": rng.choice([1, 1, 2]),
    }
    path = rng.choice(PATHS)
    if path == PATHS[0]:
        prompt = rng.choice([script, [0xE9, *ids[:3]], [script, script[:3]]])
        return path, body | {"prompt": prompt, "echo": rng.random() < 0.2, "logprobs": 1}
    messages = [{"role": "user", "content": script}]
    return path, body | {"messages": messages, "logprobs": True, "top_logprobs": 1}


def stop_strings(rng: random.Random, texts: Sequence[str]) -> list[str]:
    """Pieces of what the output would be, and some that may not come."""
    found = ["\ufffd\ufffd"] if rng.random() < 0.1 else []
    for _ in range(rng.randint(0, 3)):
        text = rng.choice(texts)
        start = rng.randrange(len(text) + 1)
        found.append(text[start : start + rng.randint(1, 7)] or "never")
    return found


def text_of(choice: dict[str, Any]) -> str:
    part = choice.get("delta", choice.get("message", choice))
    text: str = part.get("content", part.get("text", ""))
    return text


def logprobs_of(choice: dict[str, Any]) -> list[Any]:
    """One entry a token, whatever the endpoint."""
    logprobs = choice["logprobs"]
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] for name in names), strict=True))


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """The chunks of a streamed answer, which is complete."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = body | {"stream": True, "stream_options": options}
    async with client.stream("POST", path, json=body) as response:
        text = (await response.aread()).decode()
    assert response.status_code == 200, text
    *events, done, rest = text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    # Comments come while nothing else does.
    return [json.loads(each.removeprefix("data: ")) for each in events if each[0] != ":"]


def joined(chunks: Sequence[Any]) -> list[dict[str, Any]]:
    """What the chunks add up to, as the choices of a whole answer."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(
                part["index"], {"text": "", "token_ids": [], "logprobs": [], "ends": []}
            )
            assert not choice["ends"]
            choice["text"] += text_of(part)
            choice["token_ids"] += part.get("token_ids", [])
            choice["logprobs"] += logprobs_of(part)
            if part["finish_reason"] is not None:
                choice["ends"].append((part["finish_reason"], part["stop_reason"]))
    return [choices[index] for index in sorted(choices)]


def check_same(whole: dict[str, Any], chunks: Sequence[Any]) -> None:
    expected = [
        {
            "text": text_of(choice),
            "token_ids": choice["token_ids"],
            "logprobs": logprobs_of(choice),
            "ends": [(choice["finish_reason"], choice["stop_reason"])],
        }
        for choice in whole["choices"]
    ]
    assert joined(chunks) == expected
    usages = [chunk["usage"] for chunk in chunks]
    assert usages[-1]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert usages[-1]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts)
    # The output's logprobs end with its last token; before them are those of an echoed prompt.
    for choice in expected:
        assert len(choice["logprobs"]) >= len(choice["token_ids"])
    heads = {(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in chunks}
    assert len(heads) == 1


async def check_request(client: httpx.AsyncClient, number: int, tokenizer: Tokenizer) -> list[str]:
    """Compare; returns what ended the outputs."""
    path, body = make_request(number, tokenizer)
    free = await post(client, path, body)
    for choice in free["choices"]:
        if not body.get("echo"):
            check_text(body, choice, tokenizer)
    stop = stop_strings(random.Random(number), [text_of(each) for each in free["choices"]])
    body["stop"] = stop
    whole = await post(client, path, body)
    check_same(whole, await stream(client, path, body))
    for choice in whole["choices"]:
        if choice["stop_reason"] is None or body.get("echo"):
            continue
        if body["include_stop_str_in_output"]:
            assert text_of(choice).endswith(choice["stop_reason"])
        elif not body["min_tokens"]:
            assert not any(each in text_of(choice) for each in stop)
    return [str(choice["finish_reason"]) + type_name(choice) for choice in whole["choices"]]


def check_text(body: dict[str, Any], choice: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Without stop strings the text is that of all tokens, as the library decodes them."""
    token_ids = choice["token_ids"]
    ends_with_eos = choice["finish_reason"] == "stop"
    if ends_with_eos and not body["include_stop_str_in_output"]:
        token_ids = token_ids[:-1]
    skip = body["skip_special_tokens"]
    assert text_of(choice) == tokenizer.decode(token_ids, skip_special_tokens=skip)


def type_name(choice: dict[str, Any]) -> str:
    return f" at a {type(choice['stop_reason']).__name__}" if choice["stop_reason"] else ""


@pytest.mark.parametrize("num_prompts", [50, pytest.param(200, marks=pytest.mark.slow)])
async def test_streamed_deltas_add_up_to_the_whole_answer(
    sim_stack: Stack, tokenizer: Tokenizer, num_prompts: int
) -> None:
    window = asyncio.Semaphore(MAX_AT_ONCE)

    async def check(number: int) -> list[str]:
        async with window:
            return await check_request(client, number, tokenizer)

    async with http_client(sim_stack.http_url) as client:
        ends = await asyncio.gather(*map(check, range(num_prompts)))
    counts = Counter(end for each in ends for end in each)
    print(f"{num_prompts} prompts, {sum(counts.values())} outputs ended by: {dict(counts)}")
    assert counts["stop at a str"] > num_prompts / 4
    assert counts["length"] and counts["stop"]
