"""What the model runner sees of a sampler, on a CPU or another device."""

from __future__ import annotations

from typing import Protocol

import torch

from worker_svc.sampler.grammar import MaskedRows
from worker_svc.sampler.metadata import Ints, SamplerOutput, SamplingBatch, TokenLogprobs


class StepSampler(Protocol):
    """Chooses tokens where the logits are; the host gets tokens, logprobs and failures."""

    def sample(
        self, logits: torch.Tensor, batch: SamplingBatch, masked: MaskedRows | None = None
    ) -> SamplerOutput:
        """One token for each row of logits.

        Args:
            logits: [num_places, vocab_size] float32, contiguous; they are changed.
            batch: The places.
            masked: Grammar masks. They come first: logprobs are those of what a mask leaves.
        """

    def prompt_logprobs(
        self, logits: torch.Tensor, token_ids: Ints, num_top: int
    ) -> list[TokenLogprobs] | None:
        """Logprobs of prompt tokens, or None if the logits have NaN or +inf.

        Args:
            logits: [num_tokens, vocab_size] float32, at the positions before them.
            token_ids: [num_tokens]
            num_top: Of the likeliest tokens beside each.
        """
