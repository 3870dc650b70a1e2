"""RMSNorm, computed in float32 whatever the type of activations.

Knows nothing of which model uses it.
"""

from __future__ import annotations

import torch
from torch import nn


class RMSNorm(nn.Module):
    """Scales each vector of the last dimension to unit root mean square, times a weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size), requires_grad=False)
        self.eps = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        # [..., size]; the cast before the weight is transformers' order, which bf16 parity needs.
        values = hidden_states.float()
        variance = values.pow(2).mean(-1, keepdim=True)
        values = values * torch.rsqrt(variance + self.eps)
        return self.weight * values.to(hidden_states.dtype)
