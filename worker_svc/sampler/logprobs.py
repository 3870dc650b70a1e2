"""Log-probabilities of sampled tokens and their likeliest rivals, from unprocessed logits.

Computed for the rows that ask. Knows nothing of how the token was chosen.
"""

from __future__ import annotations

import torch

from worker_svc.sampler.metadata import TokenLogprobs


def token_logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Logprobs of one row.

    Args:
        logits: [vocab_size] float32, before penalties and temperature.
        token_id: The sampled token.
        num_top: How many of the likeliest tokens to give beside it.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    sampled = logprobs[token_id]
    top = logprobs.topk(min(num_top, logprobs.shape[0]))
    return TokenLogprobs(
        token_ids=[token_id, *top.indices.tolist()],
        logprobs=[float(sampled), *top.values.tolist()],
        sampled_rank=int((logprobs >= sampled).sum()),
    )
