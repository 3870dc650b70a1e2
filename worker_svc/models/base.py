"""What the model runner sees of a model, whoever implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import torch

from worker_svc.attention.base import AttentionSpec, StepAttention
from worker_svc.sampler.metadata import Float32s, Ints


class CausalModel(Protocol):
    """A decoder with its weights, over a flat batch of tokens."""

    can_capture: bool
    """Its forward pass waits for nothing from the device, so that a graph can record it."""

    @property
    def attention_spec(self) -> AttentionSpec:
        """What its layers ask of an attention backend."""

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention
    ) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size], which only the model itself understands.

        Args:
            token_ids: [num_tokens] int64.
            positions: [num_tokens] int64, each below max_model_len.
            attention: Attention of this step; called once a layer.
        """

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of rows of hidden states."""

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Weights; those that layers share come once."""


GreedyChooser = Callable[[torch.Tensor], tuple[Ints, Float32s]]
"""See `ChoosesGreedily.choose_greedily`."""


@runtime_checkable
class ChoosesGreedily(Protocol):
    """A model that finds the likeliest tokens and writes no logits for it."""

    def choose_greedily(self, hidden: torch.Tensor) -> tuple[Ints, Float32s]:
        """The lowest token id of the largest logit of each row, and that logit, without the logits.

        Args:
            hidden: [num_rows, hidden_size], hidden states of the model.

        Returns:
            [num_rows] each; the logit is NaN, and the id means nothing, where any of the row is.
        """
