"""Log-probabilities of a prompt's tokens, gathered over the chunks of its prefill.

A token's logprob comes from the logits at the position before it, which a prefill otherwise does
not compute: those rows go through the LM head in pieces of bounded size. Owns what has been
gathered of each request; the first prompt token follows nothing and has none. Called by the model
runner. Always raw logprobs: sampling parameters don't shape a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

import numpy as np
import torch

from worker_svc.input_batch import StepInputs
from worker_svc.request_state import BatchRow
from worker_svc.sampler.base import StepSampler
from worker_svc.sampler.metadata import TokenLogprobs
from worker_svc.step import NAN_LOGITS

PIECE_TOKENS = 16
"""Positions whose logits are in memory at a time."""

ComputeLogits = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [n, hidden_size] to logits [n, vocab_size] float32."""


def gather_prompt_logprobs(
    inputs: StepInputs, hidden: torch.Tensor, compute_logits: ComputeLogits, sampler: StepSampler
) -> None:
    """Adds what a step computed of prompts whose logprobs are asked for.

    A request whose logits are no numbers fails alone.

    Args:
        inputs: The step's.
        hidden: [num_tokens, hidden_size], of the step's tokens.
        compute_logits: The model's.
        sampler: The model's.
    """
    for index, row in enumerate(inputs.rows):
        gathered = row.state.prompt_logprobs
        if gathered is None:
            continue
        start, end = row.start, min(row.end, row.state.num_prompt_tokens - 1)
        first_token = inputs.query_start_loc[index]
        for piece in range(start, end, PIECE_TOKENS):
            piece_end = min(piece + PIECE_TOKENS, end)
            tokens = slice(first_token + piece - start, first_token + piece_end - start)
            followers = row.state.token_ids[piece + 1 : piece_end + 1].astype(np.int64)
            logits = compute_logits(hidden[tokens])
            entries = sampler.prompt_logprobs(logits, followers, row.state.num_prompt_logprobs)
            if entries is None:
                row.state.fail(NAN_LOGITS)
                break
            gathered += entries


def take_prompt_logprobs(
    rows: Sequence[BatchRow], sampled_handles: Container[int]
) -> dict[int, list[TokenLogprobs]]:
    """Those of requests that got their first token, by handle; they are given once."""
    taken = {}
    for row in rows:
        state = row.state
        if state.handle not in sampled_handles or state.is_over:
            continue
        if state.prompt_logprobs is not None:
            taken[state.handle], state.prompt_logprobs = state.prompt_logprobs, None
    return taken
