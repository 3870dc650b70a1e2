"""Masks of a step: how they are checked, and every way in which a wait for them ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError
from tests.worker_svc.harness import WAIT_S
from worker_svc.grammar_masks import (
    INVALID_MASKS,
    MASKS_MISSING,
    MAX_DUE,
    DueMasks,
    GrammarMasks,
    MaskSource,
    check_masks,
    no_masks,
)

VOCAB_SIZE = 20


def masks(*handles: int, step: int = 1, row_bytes: int = 3) -> GrammarMasks:
    rows = np.arange(len(handles) * row_bytes, dtype=np.uint8).reshape(-1, row_bytes)
    return GrammarMasks(step, handles, rows)


def test_rows_are_found_by_handle() -> None:
    found = masks(7, 7, 3).by_handle()
    assert {handle: rows.tolist() for handle, rows in found.items()} == {
        7: [[0, 1, 2], [3, 4, 5]],
        3: [[6, 7, 8]],
    }


def test_masks_that_fit_are_taken() -> None:
    check_masks(masks(7, 7, 3), {3, 7, 9}, {7: [1]}, VOCAB_SIZE)
    check_masks(masks(), {3}, {}, VOCAB_SIZE)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (masks(3, row_bytes=2), "2 bytes a row, a vocabulary of 20 needs 3"),
        (masks(3, row_bytes=4), "4 bytes a row"),
        (masks(5), "handle 5 is not masked"),
        (masks(7), "handle 7 has 1 rows, its drafts need 2"),
        (masks(3, 3), "handle 3 has 2 rows"),
        (masks(7, 3, 7), "rows of handle 7 are not side by side"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_masks_that_do_not_fit_are_refused(bad: GrammarMasks, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        check_masks(bad, {3, 7}, {7: [1]}, VOCAB_SIZE)
    assert caught.value.reason == INVALID_MASKS


def test_a_step_without_masked_rows_has_no_masks_to_ask_for() -> None:
    with pytest.raises(RuntimeError):
        no_masks()


def test_masks_may_come_before_they_are_asked_for() -> None:
    due = DueMasks()
    source, given = due.expect(1), masks(3)
    due.put(given)
    assert source() is given


def while_waiting(source: MaskSource, then: Callable[[], None]) -> GrammarMasks:
    """What a wait gives that has begun, or is about to, when `then` runs."""
    begins = threading.Event()

    def wait() -> GrammarMasks:
        begins.set()
        return source()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert begins.wait(WAIT_S)
        then()
        return waiting.result(WAIT_S)


def test_a_wait_ends_when_masks_come() -> None:
    due, given = DueMasks(), masks(3)
    assert while_waiting(due.expect(1), lambda: due.put(given)) is given


def test_a_wait_ends_when_the_stream_does() -> None:
    due = DueMasks()
    with pytest.raises(ServiceUnavailableError) as caught:
        while_waiting(due.expect(1), due.close)
    assert caught.value.reason == MASKS_MISSING


def test_after_the_end_nothing_is_waited_for() -> None:
    due = DueMasks()
    due.close()
    with pytest.raises(ServiceUnavailableError):
        due.expect(1)()


def test_masks_that_are_there_outlive_the_end() -> None:
    due, given = DueMasks(), masks(3)
    source = due.expect(1)
    due.put(given)
    due.close()
    assert source() is given


def test_a_wait_is_bounded_and_masks_that_come_late_are_dropped() -> None:
    due = DueMasks(timeout_s=0.001)
    source = due.expect(1)
    with pytest.raises(ServiceUnavailableError, match="step 1 came in") as caught:
        source()
    assert caught.value.reason == MASKS_MISSING
    due.put(masks(3))


def test_masks_that_nobody_expects_are_refused() -> None:
    due = DueMasks()
    due.expect(1)
    due.put(masks(3))
    for step in (1, 2):
        with pytest.raises(InvalidRequestError, match="none are due"):
            due.put(masks(3, step=step))


def test_what_is_due_is_bounded() -> None:
    due = DueMasks()
    for step in range(MAX_DUE + 1):
        due.expect(step)
    due.put(masks(step=1))
    with pytest.raises(InvalidRequestError):
        due.put(masks(step=0))
