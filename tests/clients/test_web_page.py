"""The playground in a real browser: Debian's chromium, driven by Playwright.

One stack on the simulated worker and one browser serve the module; each test has a page, and so a
sessionStorage, of its own. The stack asks for a key: the page is open, the API is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.clients.web_page import CHAT, WAIT_MS, Tab, add_to_requests, chromium
from tests.e2e.stack import Stack, start_stack

KEY = "a-secret-of-the-tests"
KEY_NAME = "pagewire-api-key"
MARKUP = "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'>&amp;"
STEP_TIME_US = 5000
FIELD_NAMES = (
    *("Model", "System prompt", "Temperature", "Top p", "Top k", "Min p", "Max tokens", "Seed"),
    *("Stop strings", "Shade tokens by probability", "Alternatives shown"),
)
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    flags = ("--device", "sim", "--sim-step-time-us", str(STEP_TIME_US))
    with start_stack(*flags, env={"PAGEWIRE_API_KEY": f"tests={KEY}"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def fresh(browser: Browser, stack: Stack) -> Iterator[Tab]:
    """A tab without a key, before it went anywhere; afterwards, what must hold for every tab."""
    context = browser.new_context(base_url=stack.http_url)
    tab = Tab(context.new_page())
    yield tab
    context.close()
    assert tab.hosts() == {urlsplit(stack.http_url).netloc}
    assert tab.complaints() == []


@pytest.fixture
def tab(fresh: Tab) -> Tab:
    """A tab with the key, at the playground."""
    fresh.page.add_init_script(f"sessionStorage.setItem('{KEY_NAME}', '{KEY}')")
    fresh.page.goto("/")
    expect(fresh.page.get_by_label("Model")).to_have_value("smollm2")
    return fresh


def answer_with(tab: Tab, *events: dict[str, Any]) -> None:
    """Have chats answered with these events in place of the server's."""
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    tab.page.route(CHAT, lambda route: route.fulfill(content_type="text/event-stream", body=body))


def say_something_long(tab: Tab) -> None:
    """Start an answer that does not end by itself for long."""
    add_to_requests(tab, ignore_eos=True)
    tab.set(max_tokens=8000)
    tab.say("Tell me everything.")
    expect(tab.page.locator(".token").nth(5)).to_be_visible()


def load(stack: Stack) -> int:
    """Requests in work at the gateway."""
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx.get(f"{stack.http_url}/load", headers=headers, timeout=30)
    return int(answer.json()["server_load"])


def wait_load(stack: Stack, number: int) -> None:
    """Wait until so many requests are in work; the test's own timeout bounds it."""
    while load(stack) != number:
        pass


def test_a_chat_is_streamed_with_each_token_shaded_by_its_probability(tab: Tab) -> None:
    add_to_requests(tab, ignore_eos=True)
    tab.set(max_tokens=24, temperature=0)
    tab.say("What is the capital of France?")
    text = tab.answer()
    tokens = tab.page.locator(".token")
    assert tokens.count() > 20
    assert "".join(tokens.all_text_contents()) == text != ""
    first = tokens.first
    expect(first).to_have_attribute("title", re.compile(r"^\d+\.\d %$"))
    shade = first.evaluate("(span) => getComputedStyle(span).backgroundColor")
    assert shade not in ("transparent", "rgba(0, 0, 0, 0)")
    about = tab.page.locator(".about")
    expect(about).to_contain_text(re.compile(r"\d+ \+ 24 tokens"))
    expect(about).to_contain_text(re.compile(r"first after .* · [\d.]+ tokens/s"))
    (body,) = tab.chats()
    assert (body["logprobs"], body["top_logprobs"], body["stream"]) == (True, 5, True)


def newest_trace(stack: Stack) -> str:
    """The id of the request whose trace was kept last."""
    headers = {"authorization": f"Bearer {KEY}"}
    kept = httpx.get(f"{stack.http_url}/v1/requests", headers=headers, timeout=30).json()["recent"]
    return str(kept[0]["id"]) if kept else ""


def test_the_trace_of_an_answer_is_drawn_when_it_is_opened(tab: Tab, stack: Stack) -> None:
    earlier = newest_trace(stack)
    add_to_requests(tab, ignore_eos=True)
    tab.set(max_tokens=40)
    tab.say("Hi")
    tab.answer()
    while newest_trace(stack) == earlier:  # it ends a moment after its last byte
        pass
    assert not [each for each in tab.requests if each.url.endswith("/trace")]
    tab.page.get_by_text("Trace", exact=True).click()
    bars = tab.page.get_by_role("list", name="Timeline").get_by_role("listitem")
    expect(bars.filter(has_text="worker: prefill")).to_have_count(1)
    decode = bars.filter(has_text="worker: decode").first
    expect(decode.locator("rect.box-worker").first).to_be_visible()
    assert decode.locator("rect").first.bounding_box()["width"] > 1
    sums = tab.page.get_by_role("list", name="Parts").get_by_role("listitem")
    # Which part is the largest, the machine decides.
    expect(sums.filter(has_text=re.compile(r"^forward .* \(\d+ %\)$"))).to_have_count(1)


def test_what_else_was_likely_is_shown_on_hover_and_by_keyboard(tab: Tab) -> None:
    tab.set(max_tokens=5, top_logprobs=3, temperature=0)
    tab.say("Hi")
    tab.answer()
    chips = tab.page.get_by_label("The chosen token").get_by_role("listitem")
    tab.page.locator(".token").nth(1).hover()
    expect(chips).to_have_count(3)
    chosen = chips.and_(tab.page.locator("[aria-current]"))
    expect(chosen).to_contain_text("%")
    hovered = chips.all_text_contents()
    tab.page.get_by_role("log").focus()
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.locator(".token").nth(0)).to_be_focused()
    assert chips.all_text_contents() != hovered
    tab.page.keyboard.press("ArrowRight")
    expect(tab.page.locator(".token").nth(1)).to_be_focused()
    assert chips.all_text_contents() == hovered


def test_the_whole_conversation_goes_to_the_model(tab: Tab) -> None:
    tab.set(max_tokens=4, temperature=0, system="Be brief.")
    tab.say("One")
    first = tab.answer()
    tab.say("Two")
    tab.answer()
    assert tab.chats()[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "Two"},
    ]


def test_sampling_controls_reach_the_request_and_empty_ones_do_not(tab: Tab) -> None:
    sampling = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 4, "seed": 7,
    }  # fmt: skip
    tab.set(**sampling, stop="###\n\\nUser:")
    tab.say("Hi")
    tab.answer()
    tab.set(**dict.fromkeys(sampling, ""), stop="###")
    tab.set(max_tokens=3)
    tab.page.get_by_label("Shade tokens").uncheck()
    tab.say("Hi")
    tab.answer()
    first, second = tab.chats()
    assert {name: first[name] for name in sampling} == sampling
    assert first["stop"] == ["###", "\nUser:"]
    rest = {"model", "messages", "stream", "stream_options"}
    assert second.keys() == rest | {"max_tokens", "stop"}
    last = tab.page.get_by_role("article", name="Answer").last
    expect(last.locator(".token")).to_have_count(0)
    expect(last.locator("> .text")).not_to_be_empty()


def test_a_seed_repeats_an_answer_and_regenerate_takes_its_place(tab: Tab) -> None:
    tab.set(max_tokens=12, temperature=1, seed=11)
    tab.say("Hi")
    first = tab.answer()
    regenerate = tab.page.get_by_role("button", name="Regenerate")
    regenerate.click()
    expect(regenerate).to_be_enabled()
    assert tab.answer() == first
    tab.set(seed=12)
    regenerate.click()
    expect(regenerate).to_be_enabled()
    assert tab.answer() != first
    expect(tab.page.get_by_role("article")).to_have_count(2)
    messages = [body["messages"] for body in tab.chats()]
    assert messages == [[{"role": "user", "content": "Hi"}]] * 3


@pytest.mark.parametrize("by_key", [True, False], ids=["escape", "button"])
def test_stop_ends_the_request_itself(tab: Tab, stack: Stack, by_key: bool) -> None:
    say_something_long(tab)
    assert load(stack) == 1
    if by_key:
        tab.page.keyboard.press("Escape")
    else:
        tab.page.get_by_role("button", name="Stop").click()
    expect(tab.page.locator(".about")).to_contain_text("stopped")
    wait_load(stack, 0)
    assert tab.answer() != ""
    expect(tab.page.get_by_role("button", name="Send")).to_be_visible()


def test_clear_ends_the_request_and_forgets_the_conversation(tab: Tab, stack: Stack) -> None:
    say_something_long(tab)
    tab.page.get_by_role("button", name="Clear").click()
    wait_load(stack, 0)
    expect(tab.page.get_by_role("article")).to_have_count(0)
    tab.set(max_tokens=3)
    tab.say("Hi")
    tab.answer()
    assert tab.chats()[-1]["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_key_is_asked_for_until_it_is_right_and_kept_for_the_tab_only(fresh: Tab) -> None:
    page = fresh.page
    page.goto("/")
    dialog = page.get_by_role("dialog", name="API key")
    expect(dialog).to_contain_text("asks for a key")
    for key in ("wrong", KEY):
        dialog.get_by_label("Key", exact=True).fill(key)
        page.keyboard.press("Enter")
        if key == "wrong":
            expect(dialog).to_contain_text("does not know this key")
    expect(page.get_by_label("Model")).to_have_value("smollm2")
    fresh.set(max_tokens=3)
    fresh.say("Hi")
    assert fresh.answer() != ""
    assert page.evaluate("() => ({...sessionStorage})") == {KEY_NAME: KEY}
    assert page.evaluate("() => localStorage.length + document.cookie.length") == 0
    assert all(KEY not in request.url for request in fresh.requests)
    page.reload()
    expect(page.get_by_label("Model")).to_have_value("smollm2")
    expect(dialog).to_be_hidden()


def test_without_a_key_the_refusal_is_shown(fresh: Tab) -> None:
    fresh.page.goto("/")
    fresh.page.get_by_role("button", name="Cancel").click()
    expect(fresh.page.get_by_role("alert")).to_contain_text("status 401")
    fresh.say("Hi")
    expect(fresh.page.get_by_role("dialog")).to_be_visible()


def test_an_error_is_readable_marks_its_field_and_does_no_lasting_harm(tab: Tab) -> None:
    tab.set(temperature=99, max_tokens=3)
    tab.say("Hi")
    alert = tab.page.get_by_role("alert")
    expect(alert).to_contain_text("temperature")
    expect(alert).to_contain_text("status 400")
    expect(tab.page.locator("[name=temperature]")).to_have_attribute("aria-invalid", "true")
    tab.set(temperature=0)  # drawn, it might end at once
    tab.say("Hello")
    assert tab.answer() != ""
    # The question that was refused is neither shown nor sent.
    expect(tab.page.get_by_role("article", name="Your message")).to_have_text(["Hello"])
    assert tab.chats()[-1]["messages"] == [{"role": "user", "content": "Hello"}]


def test_an_error_within_a_stream_is_shown_below_what_came(tab: Tab) -> None:
    chunk = {"choices": [{"delta": {"content": "Half"}, "logprobs": None, "finish_reason": None}]}
    error = {"error": {"message": "the engine is gone", "param": None, "code": 503}}
    answer_with(tab, chunk, error)
    tab.say("Hi")
    expect(tab.page.get_by_role("alert")).to_contain_text("the engine is gone (status 503")
    assert tab.answer() == "Half"


def test_a_server_that_is_gone_is_told(tab: Tab) -> None:
    tab.page.route(CHAT, lambda route: route.abort())
    tab.say("Hi")
    expect(tab.page.get_by_role("alert")).to_have_text(
        "The server cannot be reached. Is it running?"
    )
    tab.forget_complaints()  # Chromium reports the failure that was made here


def test_markup_in_messages_and_answers_stays_text(tab: Tab) -> None:
    # The engine itself writes markup.
    add_to_requests(tab, structured_outputs={"choice": [MARKUP]})
    tab.say(MARKUP)
    assert tab.answer() == MARKUP
    expect(tab.page.get_by_role("article", name="Your message")).to_have_text(MARKUP)
    assert "".join(tab.page.locator(".token").all_text_contents()) == MARKUP
    tab.page.locator(".token").first.hover()
    assert (
        tab.page.locator("#transcript :is(script, img), #inspector :is(script, img)").count() == 0
    )
    assert tab.page.evaluate("() => window.ran === undefined")


def test_the_browser_itself_refuses_text_as_markup(tab: Tab) -> None:
    refused = """() => {
        try { document.getElementById("welcome").innerHTML = "<b>x</b>"; } catch { return true; }
        return false;
    }"""
    assert tab.page.evaluate(refused)
    tab.forget_complaints()  # the policy's report of it


def test_reasoning_stands_apart_and_text_that_waited_meets_its_tokens(tab: Tab) -> None:
    """What the embedded model never does: think tags, a character in two tokens, held-back text."""

    def token(data: bytes) -> dict[str, Any]:
        shown = {"token": data.decode(errors="replace"), "logprob": -0.1, "bytes": list(data)}
        return {**shown, "top_logprobs": []}

    steps: list[tuple[dict[str, str], list[bytes]]] = [
        ({}, [b"<think>"]),
        ({"reasoning": "Hm"}, [b"Hm"]),
        ({}, [b"</think>"]),
        ({"content": "Hi"}, [b"Hi", b" \xc3"]),
        ({"content": " \u00e9"}, [b"\xa9"]),
        ({}, [b" wor"]),
        ({"content": " world"}, [b"ld", b"<|im_end|>"]),
    ]
    chunks = [
        {"choices": [{"delta": delta, "logprobs": {"content": [*map(token, tokens)]}}]}
        for delta, tokens in steps
    ]
    answer_with(tab, *chunks)
    tab.say("Hi")
    assert tab.answer() == "Hi \u00e9 world"
    answer = tab.page.get_by_role("article", name="Answer")
    expect(answer.get_by_role("group")).to_have_text("ReasoningHm")
    assert answer.locator(".token").all_text_contents() == ["Hm", "Hi", " \u00e9", " wor", "ld"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off_in_light_and_dark(tab: Tab, scheme: str) -> None:
    page = tab.page
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.get_by_text("Settings").click()
    tab.set(max_tokens=40, temperature=0)  # drawn, it might end at once
    page.get_by_text("Settings").click()
    tab.say("x" * 200)
    tab.answer()
    page.locator(".token").first.hover()
    wide = "() => [document.documentElement, document.getElementById('transcript')].map("
    widths = page.evaluate(wide + "(e) => [e.scrollWidth, e.clientWidth])")
    assert all(scrolled <= seen for scrolled, seen in widths)
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
    back = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    red = int(re.findall(r"\d+", back)[0])
    assert red < 60 if scheme == "dark" else red > 200


def test_the_page_is_used_by_keyboard_and_every_field_has_a_name(tab: Tab) -> None:
    page = tab.page
    tab.set(max_tokens=3)
    prompt = page.get_by_label("Message", exact=True)
    prompt.focus()
    page.keyboard.type("Hi")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    page.keyboard.press("Enter")
    tab.answer()
    assert tab.chats()[0]["messages"][0]["content"] == "Hi\nthere"
    expect(prompt).to_have_value("")
    for name in FIELD_NAMES:
        expect(page.get_by_label(name)).to_have_count(1)
    nameless = page.locator("button:not([aria-label])").filter(has_not_text=re.compile(r"\w"))
    assert nameless.count() == 0
