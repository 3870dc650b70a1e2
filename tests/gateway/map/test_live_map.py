"""What is kept, what is forgotten, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import jsonschema

from gateway.http.openapi.document import document
from gateway.map.boxes import GATEWAY_ID, Kind, Seen
from gateway.map.history import KEPT_S
from gateway.map.live_map import LiveMap, View
from gateway.map.report import report
from tests.gateway.map.factories import SCHEDULER, TOKENIZER, WORKER, make_box, make_seen


class Watched:
    """A map whose clock and figures are the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.seen: Sequence[Seen] = make_seen()
        self.map = LiveMap(lambda: list(self.seen), clock=lambda: self.now_s)

    def pass_seconds(self, number: int, **values: dict[str, float]) -> View:
        """Look once a second; counters named `*_ns` and the like grow by what is given."""
        for _ in range(number):
            self.now_s += 1.0
            at = {name: {k: v * self._factor(k) for k, v in each.items()} for name, each in
                  values.items()}  # fmt: skip
            self.seen = make_seen({_BOXES[name]: each for name, each in at.items()})
            self.map.sample()
        return self.map.view()

    def _factor(self, name: str) -> float:
        return self.now_s if name in _COUNTERS or name.endswith("_ns") else 1.0


_COUNTERS = {"messages", "steps", "calls", "generation_tokens", "preemptions", "tokens", "rpcs"}
_BOXES = {
    "gateway": GATEWAY_ID,
    "tokenizer": TOKENIZER,
    "scheduler": SCHEDULER,
    "worker": WORKER,
    "to_scheduler": f"{GATEWAY_ID}>{SCHEDULER}",
    "requests": f"clients>{GATEWAY_ID}",
}
BUSY = {
    "gateway": {"live": 2.0, "cpu_ns": 0.2e9, "uptime_ns": 1e9, "wait_ns": 0.1e9},
    "scheduler": {
        "running": 2.0, "waiting": 9.0, "for_room": 9.0, "max_num_seqs": 2.0, "kv_usage": 0.1,
        "steps": 10.0, "generation_tokens": 20.0, "execute_ns": 1e9, "queue_ns": 0.4e9,
        "busy_ns": 0.5e9, "forward_ns": 0.4e9, "sample_ns": 0.05e9, "schedule_ns": 1e6,
    },
    "worker": {"uptime_ns": 1e9, "work_ns": 0.5e9, "work_threads": 1.0},
    "to_scheduler": {"messages": 10.0, "tokens": 20.0, "round_trip_ns": 0.0},
    "requests": {"messages": 3.0},
}  # fmt: skip


def figures(watched: Watched, name: str) -> dict[str, float]:
    answer = report(watched.map.view(), 1.0)
    box = next(box for box in answer["boxes"] if box["id"] == name)
    found: dict[str, float] = box["figures"]
    return found


def test_the_figures_are_those_of_the_window() -> None:
    watched = Watched()
    watched.pass_seconds(20, **BUSY)
    gateway = figures(watched, GATEWAY_ID)
    assert (gateway["requests_per_s"], gateway["output_tokens_per_s"]) == (3, 20)
    scheduler = figures(watched, SCHEDULER)
    assert (scheduler["running"], scheduler["waiting"], scheduler["steps_per_s"]) == (2, 9, 10)
    assert (scheduler["execute_ms"], scheduler["wire_ms"]) == (100, 10)
    worker = figures(watched, WORKER)
    assert (worker["busy_share"], worker["idle_share"]) == (0.5, 0.5)
    assert (worker["forward_ms"], worker["sample_ms"], worker["wait_ms"]) == (40, 5, 40)


def test_the_diagnosis_is_of_the_last_seconds() -> None:
    watched = Watched()
    assert watched.pass_seconds(60, gateway={"live": 0.0}).diagnose().verdict == "idle"
    assert watched.pass_seconds(7, **BUSY).diagnose().verdict == "queue-bound"


def test_before_the_first_look_there_is_nothing() -> None:
    view = Watched().map.view()
    assert (view.diagnose().verdict, report(view, 1.0)["boxes"]) == ("watching", [])


def test_the_answer_is_as_documented() -> None:
    schema = document()["components"]["schemas"]
    watched = Watched()
    for view in (watched.map.view(), watched.pass_seconds(1), watched.pass_seconds(9, **BUSY)):
        answer = report(view, 1.5)
        jsonschema.validate(
            answer, {"$ref": "#/components/schemas/Map", "components": {"schemas": schema}}
        )


def test_what_has_left_is_not_shown_and_forgotten_after_two_minutes() -> None:
    watched = Watched()
    watched.pass_seconds(3)
    gone = make_box("scheduler-9", Kind.SCHEDULER, replica="9")
    watched.seen = [*make_seen(), Seen(gone, {"running": 1.0})]
    watched.map.sample()
    assert "scheduler-9" in {box.id for box, _, _ in watched.map.view().boxes}
    view = watched.pass_seconds(1)
    assert "scheduler-9" not in {box.id for box, _, _ in view.boxes}
    watched.pass_seconds(int(KEPT_S) + 1)
    assert len(watched.map._histories) == len(make_seen())


async def test_a_look_that_fails_does_no_harm() -> None:
    num_looks, has_looked_again = 0, asyncio.Event()

    def look() -> list[Seen]:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 1:
            raise ZeroDivisionError
        return list(make_seen())

    async def sleep(_: float) -> None:
        if num_looks == 2:
            has_looked_again.set()
            await asyncio.Event().wait()

    live_map = LiveMap(look, sleep=sleep)
    running = asyncio.create_task(live_map.run())
    await has_looked_again.wait()
    running.cancel()
    assert len(live_map.view().boxes) == 4
