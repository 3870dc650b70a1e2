"""The page's Map tab in a real browser: it moves while a chat runs, and names what limits it.

As in `test_web_page`, one stack on the simulated worker serves the module and asks for a key. Two
replicas run at most one request each, so that a queue is quickly made; steps are slow, so that the
stack needs few cores and lacks none on a machine that does other things too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.clients.web_page import WAIT_MS, Tab, add_to_requests, chromium
from tests.e2e.stack import Stack, start_stack

KEY = "a-secret-of-the-tests"
KEY_NAME = "pagewire-api-key"
FLAGS = (
    *("--device=sim", "--sim-step-time-us=100000", "--data-parallel-size=2", "--max-num-seqs=1"),
    "--routing-policy=least-loaded",
)
BOXES = ("gateway", "tokenizer-0", "scheduler-0", "worker-0.0", "scheduler-1", "worker-1.0")
NUM_WAITING = 8
SCREENSHOTS = "PAGEWIRE_SCREENSHOTS"
"""Names a folder for pictures of the page; default: the test's own."""
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with start_stack(*FLAGS, env={"PAGEWIRE_API_KEY": f"tests={KEY}"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def tab(browser: Browser, stack: Stack) -> Iterator[Tab]:
    """A tab with the key; afterwards, what must hold for every tab."""
    context = browser.new_context(
        base_url=stack.http_url, viewport={"width": 1280, "height": 860}, color_scheme="light"
    )
    tab = Tab(context.new_page())
    tab.page.add_init_script(f"sessionStorage.setItem('{KEY_NAME}', '{KEY}')")
    yield tab
    context.close()
    assert tab.hosts() == {urlsplit(stack.http_url).netloc}
    assert tab.complaints() == []


@pytest.fixture
def queue(stack: Stack) -> Iterator[None]:
    """More requests than may run, for as long as the test lasts."""
    body = {"prompt": "x", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=stack.http_url, headers=headers, timeout=None) as client:

        def ask() -> None:
            with client.stream("POST", "/v1/completions", json=body) as answer:
                for _ in answer.iter_raw():
                    if is_over:
                        return

        is_over = list[bool]()
        with ThreadPoolExecutor(NUM_WAITING) as pool:
            asked = [pool.submit(ask) for _ in range(NUM_WAITING)]
            yield
            is_over.append(True)
            # Those that wait get their turn when the others have left.
            for each in asked:
                each.result()


def open_map(tab: Tab) -> None:
    tab.page.goto("/")
    expect(tab.page.get_by_label("Model")).to_have_value("smollm2")
    tab.page.get_by_role("link", name="Map").click()
    expect(tab.page.get_by_role("article")).to_have_count(len(BOXES))


def figure(tab: Tab, box: str, label: str) -> str:
    """A figure as it is shown now; empty: it is not."""
    card = tab.page.get_by_role("article", name=f"{box},")
    row = card.locator("dl div", has=tab.page.get_by_text(label, exact=True)).locator("dd")
    return row.text_content() or "" if row.count() else ""


def test_the_map_moves_while_a_chat_runs_and_all_is_quiet_before(tab: Tab) -> None:
    open_map(tab)
    page = tab.page
    expect(page.get_by_role("status").filter(has_text="idle")).to_be_visible()
    for name in BOXES:
        expect(page.get_by_role("article", name=re.compile(f"^{name}, ready"))).to_be_visible()
    page.get_by_role("link", name="Playground").click()
    tab.set(max_tokens=2000, temperature=1)
    add_to_requests(tab, ignore_eos=True)
    tab.say("Tell me everything.")
    expect(page.locator(".token").nth(3)).to_be_visible()
    page.get_by_role("link", name="Map").click()
    expect(page.locator("#map-edges .moving")).not_to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="worker-bound at worker-")).to_be_visible()
    first = page.locator("#map-boxes").inner_text()
    expect(page.locator("#map-boxes")).not_to_have_text(first)
    running = [figure(tab, f"scheduler-{each}", "Running") for each in (0, 1)]
    assert sorted(running) == ["0 of 1", "1 of 1"]
    # What runs in the other tab goes on.
    page.get_by_role("link", name="Playground").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".about")).to_contain_text("stopped")


def test_the_box_that_limits_the_others_is_named_and_marked(
    tab: Tab, queue: None, tmp_path: Path
) -> None:
    open_map(tab)
    page = tab.page
    expect(page.get_by_role("status").filter(has_text="queue-bound at scheduler-")).to_be_visible()
    expect(page.get_by_label("What to try")).to_contain_text("--max-num-seqs 2")
    marked = page.locator(".limiting")
    expect(marked).to_have_count(1)
    expect(marked).to_contain_text("limits the others")
    expect(marked).to_have_attribute("aria-label", re.compile("^scheduler-"))
    picture = Path(os.environ.get(SCREENSHOTS, tmp_path)) / "map.png"
    page.screenshot(path=picture, full_page=True)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off(tab: Tab, scheme: str) -> None:
    tab.page.set_viewport_size(PHONE)
    tab.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    open_map(tab)
    widths = tab.page.evaluate(
        "() => [document.documentElement, document.getElementById('map')]"
        ".map((e) => [e.scrollWidth, e.clientWidth])"
    )
    assert all(scrolled <= seen for scrolled, seen in widths), widths


def test_a_map_that_is_not_looked_at_asks_for_nothing(tab: Tab) -> None:
    open_map(tab)
    tab.page.get_by_role("link", name="Playground").click()
    expect(tab.page.get_by_label("Map", exact=True)).to_be_hidden()
    asked = len(map_requests(tab))
    tab.page.wait_for_timeout(2500)  # of the page's own clock: it would have asked twice
    assert len(map_requests(tab)) - asked <= 1, "one may have been under way"


def map_requests(tab: Tab) -> list[str]:
    return [each.url for each in tab.requests if each.url.endswith("/v1/map")]
