"""How the experts of a mixture run, so that a token's numbers do not depend on who chose the same.

Owns the function that transformers' expert layers call. Each expert multiplies the rows that chose
it, as many as a GEMM needs to add in one fixed order, and a token's experts are added in the order
in which its router chose them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from worker_svc.attention.torch_backend import MIN_GEMM_ROWS

EXPERTS_NAME = "pagewire"


def experts_forward(
    module: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """What `ExpertsInterface` holds under `EXPERTS_NAME`.

    Args:
        module: The layer's experts.
        hidden: [num_tokens, hidden_size].
        chosen: [num_tokens, num_chosen] int64, experts of each token.
        weights: [num_tokens, num_chosen], their shares.

    Returns:
        [num_tokens, hidden_size] in the type of `hidden`.
    """
    num_chosen = chosen.shape[1]
    experts = chosen.flatten()  # of each pair of a token and an expert
    shares = weights.reshape(-1, 1)
    run = _run_plain if _is_plain(module) else _run_alone
    pairs = hidden.new_empty(len(experts), hidden.shape[1])
    for expert in sorted(set(experts.tolist())):
        places = (experts == expert).nonzero().flatten()
        rows = _pad_rows(hidden[places // num_chosen])
        pairs[places] = run(module, expert, rows, _pad_rows(shares[places]))[: len(places)]
    return pairs.view(*chosen.shape, -1).sum(dim=1).to(hidden.dtype)


def _run_plain(module: Any, expert: int, rows: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """One expert's part of its tokens' outputs: rows [n, hidden_size], shares [n, 1]."""
    inner = module._apply_gate(functional.linear(rows, module.gate_up_proj[expert]))
    output: torch.Tensor = functional.linear(inner, module.down_proj[expert]) * shares
    return output


def _run_alone(module: Any, expert: int, rows: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """The same through transformers' own code, as if all tokens had chosen this expert alone."""
    chosen = torch.full((len(rows), 1), expert, dtype=torch.int64, device=rows.device)
    output: torch.Tensor = type(module).forward.__wrapped__(module, rows, chosen, shares)
    return output


def _is_plain(module: Any) -> bool:
    """Gated, without biases or norms of its own; others need transformers' code."""
    unusual = module.has_bias or module.has_post_expert_norm or module.is_transposed
    return bool(module.has_gate and module.is_concatenated and not unusual)


def _pad_rows(rows: torch.Tensor) -> torch.Tensor:
    missing = MIN_GEMM_ROWS - len(rows)
    return functional.pad(rows, (0, 0, 0, missing)) if missing > 0 else rows
