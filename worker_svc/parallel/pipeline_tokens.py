"""Sampled tokens on their way from the last pipeline stage back to the others.

Every stage keeps the same requests, but only the last one samples. The others note what a step will
draw, and take it in before a later step that needs it: stages do not wait for each other while
there is other work. What is sent has a size that both ends know beforehand: a row's number of
tokens, whether the request is over, and room for a token and one more a draft.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

import torch

from worker_svc.parallel.groups import ParallelGroups
from worker_svc.request_state import BatchRow
from worker_svc.step_sampling import SampledRow

_HEAD = 2


class PipelineTokens:
    """The sampled tokens of one rank's pipeline; on the device thread, steps in order."""

    def __init__(self, groups: ParallelGroups) -> None:
        self._groups = groups
        self._due: deque[Sequence[BatchRow]] = deque()
        """Of steps under way, the rows that sample."""

    def send(self, rows: Sequence[BatchRow], sampled: Mapping[int, SampledRow]) -> None:
        """On the last stage: hand on what a step drew.

        Args:
            rows: Those that were to sample, in the batch's order.
            sampled: What they got, by handle.
        """
        if not rows:
            return
        columns: list[int] = []
        for row in rows:
            given = sampled.get(row.state.handle)
            token_ids = list(given.token_ids) if given is not None else []
            room = row.num_drafts + 1 - len(token_ids)
            columns += [len(token_ids), int(row.state.is_over), *token_ids, *([0] * room)]
        self._groups.send_tokens(torch.tensor(columns, dtype=torch.int64))

    def expect(self, rows: Sequence[BatchRow]) -> None:
        """On the other stages: note which rows of a step the last stage samples for."""
        if rows:
            self._due.append(rows)

    def settle(self, handles: Collection[int]) -> None:
        """Take in the tokens that a step over `handles` needs, and all that are surely there."""
        wanted = set(handles)
        num_needed = max(
            (
                place
                for place, rows in enumerate(self._due, start=1)
                if any(row.state.handle in wanted for row in rows)
            ),
            default=0,
        )
        # At most pp_size other steps are in flight: those before them have been answered.
        for _ in range(max(num_needed, len(self._due) - self._groups.layout.pp_size)):
            self._receive(self._due.popleft())

    def clear(self) -> None:
        """Forget what is due: the group has ended."""
        self._due.clear()

    def _receive(self, rows: Sequence[BatchRow]) -> None:
        size = sum(_HEAD + row.num_drafts + 1 for row in rows)
        columns: list[int] = self._groups.receive_tokens(size).tolist()
        start = 0
        for row in rows:
            num_tokens, is_over = columns[start : start + _HEAD]
            start += _HEAD
            if num_tokens:
                row.state.append_sampled(columns[start : start + num_tokens])
            row.state.is_over = bool(is_over)
            start += row.num_drafts + 1
