"""Records steps of single tokens in graphs, and replays them for the steps that fit.

A step whose rows all have one token runs padded to the next recorded size; any other runs as it is.
Owns the graphs and what they read; how one is recorded is the backend's. On the device thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from worker_svc.attention.base import AttentionBackend, DecodeAttention, StepAttention
from worker_svc.graphs.inputs import GraphInputs
from worker_svc.graphs.sizes import GraphSize, GraphSizes
from worker_svc.input_batch import StepInputs
from worker_svc.step import ProgressCallback

Replay = Callable[[], torch.Tensor]
"""Computes again what was recorded, from what the inputs hold now; gives hidden states
[num_rows, hidden_size], which the next replay may overwrite."""
Forward = Callable[[torch.Tensor, torch.Tensor, StepAttention], torch.Tensor]
"""A model: token ids and positions [num_tokens] int64, attention, to hidden states."""


class GraphBackend(Protocol):
    """How a device records work."""

    def record(self, work: Callable[[], torch.Tensor]) -> Replay:
        """Runs `work` at least once, and records what it does with the device."""


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A graph, and what must live as long as it does."""

    replay: Replay
    attention: DecodeAttention
    """A device's graph knows its tensors by their addresses alone."""


class GraphRunner:
    """The graphs of one model over one KV cache."""

    def __init__(
        self, forward: Forward, sizes: GraphSizes, device: torch.device, backend: GraphBackend
    ) -> None:
        """Prepare; `capture` records.

        Args:
            forward: The model.
            sizes: What to record.
            device: Where.
            backend: How.
        """
        self._forward = forward
        self._sizes = sizes
        self._backend = backend
        self._inputs = GraphInputs(sizes.largest, device)
        self._recorded: dict[GraphSize, _Recorded] = {}

    @torch.inference_mode()
    def capture(self, attention: AttentionBackend, progress: ProgressCallback) -> None:
        """Record every size, the largest first.

        Args:
            attention: With the KV cache that the graphs are to use.
            progress: Called with ("capture_graphs", fraction).
        """
        progress("capture_graphs", 0.0)
        for number, size in enumerate(self._sizes.falling(), start=1):
            self.record(size, attention)
            progress("capture_graphs", number / len(self._sizes))

    @torch.inference_mode()
    def record(self, size: GraphSize, attention: AttentionBackend) -> None:
        """Record one size; its rows are padding meanwhile, so that nothing is written."""
        self._inputs.clear(size)
        view = self._inputs.view(size)
        decode = attention.prepare_decode(view.attention)

        def work() -> torch.Tensor:
            decode.refresh()
            return self._forward(view.token_ids.long(), view.positions.long(), decode)

        self._recorded[size] = _Recorded(self._backend.record(work), decode)

    def run(self, inputs: StepInputs) -> torch.Tensor | None:
        """Hidden states [num_rows, hidden_size] of a step, or None: it fits no graph."""
        num_rows, num_blocks = inputs.block_tables.shape
        if inputs.num_single_rows < num_rows:
            return None
        size = self._sizes.fitting(num_rows, num_blocks)
        if size is None:
            return None
        self._inputs.write(inputs, size)
        return self._recorded[size].replay()[:num_rows]
