"""Grammar masks of a step: the record, its checks, and the wait for those that have not come.

A step may run before the masks for it are made: they depend on the tokens of the step before. The
event loop puts them here when their frame comes, the device thread waits for them after its
forward pass. Knows nothing of grammars: a mask is one bit a token id.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pagewire.kit.errors import InvalidRequestError, ServiceUnavailableError

INVALID_MASKS = "INVALID_MASKS"
MASKS_MISSING = "MASKS_MISSING"
MASKS_TIMEOUT_S = 60.0
"""How long a step waits for its masks; a scheduler that is alive needs milliseconds."""
MAX_DUE = 32
"""Steps whose masks may be awaited: more than may be in flight, since a step that fails at once
leaves its masks due."""

Bitmasks = npt.NDArray[np.uint8]
"""[num_rows, ceil(vocab_size / 8)]: bit i of a row, least significant first, allows token id i."""


@dataclass(frozen=True, slots=True)
class GrammarMasks:
    """Masks of one step. A request with k drafts has k + 1 rows, side by side."""

    step: int
    handles: Sequence[int]
    """For each row, the request that it belongs to."""
    bitmasks: Bitmasks

    def by_handle(self) -> dict[int, Bitmasks]:
        """The rows of each request.

        Raises:
            InvalidRequestError: The rows of a request do not lie side by side.
        """
        starts: dict[int, int] = {}
        rows: dict[int, Bitmasks] = {}
        for place, handle in enumerate(self.handles):
            start = starts.setdefault(handle, place)
            if place > start and self.handles[place - 1] != handle:
                raise _invalid(self.step, f"the rows of handle {handle} are not side by side")
            rows[handle] = self.bitmasks[start : place + 1]
        return rows


MaskSource = Callable[[], GrammarMasks]
"""Blocks the device thread until a step's masks are there; raises `PagewireError` if none come."""


def no_masks() -> GrammarMasks:
    """The masks of a step without masked rows: asking for them is a bug."""
    raise RuntimeError("the step has no masked rows")


def check_masks(
    masks: GrammarMasks,
    masked_handles: Collection[int],
    drafts: Mapping[int, Sequence[int]],
    vocab_size: int,
) -> None:
    """Check masks against the step that they are for.

    Args:
        masks: The step's masks. Requests that have ended meanwhile may be missing.
        masked_handles: Those that may have rows.
        drafts: Draft token ids by handle.
        vocab_size: Number of bits that a row has.

    Raises:
        InvalidRequestError: They do not fit.
    """
    num_bytes = masks.bitmasks.shape[1]
    wanted = -(-vocab_size // 8)
    if masks.handles and num_bytes != wanted:
        rule = f"{num_bytes} bytes a row, a vocabulary of {vocab_size} needs {wanted}"
        raise _invalid(masks.step, rule)
    for handle, rows in masks.by_handle().items():
        num_rows = len(drafts.get(handle, ())) + 1
        if handle not in masked_handles:
            raise _invalid(masks.step, f"handle {handle} is not masked")
        if len(rows) != num_rows:
            rule = f"handle {handle} has {len(rows)} rows, its drafts need {num_rows}"
            raise _invalid(masks.step, rule)


class DueMasks:
    """The masks that steps of one stream wait for.

    `expect`, `put` and `close` are called on the event loop; what `expect` gives blocks the device
    thread, for a bounded time.
    """

    def __init__(self, timeout_s: float = MASKS_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._due: dict[int, Future[GrammarMasks]] = {}
        self._closed = False

    def expect(self, step: int) -> MaskSource:
        """Take note of a step with masked rows; gives what waits for its masks."""
        box: Future[GrammarMasks] = Future()
        if self._closed:
            box.cancel()
        while len(self._due) >= MAX_DUE:
            del self._due[next(iter(self._due))]  # done long ago
        self._due[step] = box
        return lambda: self._wait(step, box)

    def is_due(self, step: int) -> bool:
        """Whether a step may still get masks."""
        return step in self._due

    def put(self, masks: GrammarMasks) -> None:
        """Hand masks to their step, whether or not it has begun.

        Raises:
            InvalidRequestError: No masks are due for that step.
        """
        box = self._due.pop(masks.step, None)
        if box is None:
            raise _invalid(masks.step, "none are due")
        if not box.cancelled():
            box.set_result(masks)

    def keep_oldest(self) -> None:
        """End every wait but that of the oldest step, for good."""
        self._closed = True
        for box in list(self._due.values())[1:]:
            box.cancel()

    def close(self) -> None:
        """End every wait, for good. Masks that are there already stay. Idempotent."""
        self._closed = True
        for box in self._due.values():
            box.cancel()

    def _wait(self, step: int, box: Future[GrammarMasks]) -> GrammarMasks:
        try:
            return box.result(self._timeout_s)
        except CancelledError as error:
            message = f"the stream ends before the grammar masks of step {step} came"
            raise ServiceUnavailableError(message, reason=MASKS_MISSING) from error
        except TimeoutError as error:
            message = f"no grammar masks for step {step} came in {self._timeout_s:g} s"
            raise ServiceUnavailableError(message, reason=MASKS_MISSING) from error


def _invalid(step: int, rule: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"grammar masks of step {step}: {rule}", reason=INVALID_MASKS, field="masks"
    )
