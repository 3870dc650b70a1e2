"""Ids of the request at hand: binding, validation, inheritance by tasks."""

import asyncio

import pytest

from pagewire.kit import context

TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


def test_ids_are_bound_for_the_block_only():
    with context.bind(request_id="r1", traceparent=TRACE):
        assert (context.request_id(), context.trace_id()) == ("r1", "ab" * 16)
    assert (context.request_id(), context.trace_id()) == (None, None)


def test_binding_one_id_keeps_the_others():
    with context.bind(request_id="r1", traceparent=TRACE), context.bind(request_id="r2"):
        assert (context.request_id(), context.traceparent()) == ("r2", TRACE)


def test_nothing_is_sent_on_when_nothing_is_bound():
    assert context.outgoing_metadata() == ()


def test_valid_ids_are_taken_from_metadata_whatever_the_case_of_its_keys():
    metadata = [("X-Request-Id", "r1"), ("traceparent", TRACE), ("tracestate", "a=b")]
    with context.bind(**context.ids_from_metadata(metadata)):
        assert dict(context.outgoing_metadata()) == {
            "x-request-id": "r1",
            "traceparent": TRACE,
            "tracestate": "a=b",
        }


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "a\nb", "ü"])
def test_an_id_that_is_unfit_for_logs_and_headers_is_replaced(bad):
    fresh = context.ids_from_metadata([("x-request-id", bad)])["request_id"]
    assert fresh != bad
    assert len(fresh) == 32


@pytest.mark.parametrize(
    "bad", ["", "00-" + "0" * 32 + "-" + "cd" * 8 + "-01", TRACE.upper(), "ff" + TRACE[2:], "x"]
)
def test_a_broken_traceparent_starts_a_new_trace_without_the_state_of_the_old(bad):
    ids = context.ids_from_metadata([("traceparent", bad), ("tracestate", "a=b")])
    assert ids["traceparent"] != bad
    assert "tracestate" not in ids


async def test_a_task_inherits_the_ids_and_cannot_change_those_of_its_parent():
    async def child() -> str | None:
        inherited = context.request_id()
        with context.bind(request_id="child"):
            await asyncio.sleep(0)
        return inherited

    with context.bind(request_id="parent"):
        assert await asyncio.create_task(child()) == "parent"
        assert context.request_id() == "parent"
