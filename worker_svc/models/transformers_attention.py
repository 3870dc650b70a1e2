"""The attention function that transformers' models call, and who answers the call.

Owns the names under which it is registered, and the one place that says whose step it is. Some
families drop keyword arguments on the way to their layers, so the step does not travel through the
model: whoever runs a forward pass sets the answering object around it, on the same thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import nn

from worker_svc.attention.base import AttentionSpec, StepAttention

SERVING_NAME = "pagewire"
"""No mask is known by this name, so models build none: each row's keys are its own already."""
PROBE_NAME = "pagewire_probe"
"""The same function, with masks that say what a layer would have hidden."""


class AttentionCalls(Protocol):
    """Answers each layer's call; tensors are [1, heads, num_tokens, head_dim]."""

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The output, [1, num_tokens, heads, head_dim]."""


_calls: ContextVar[AttentionCalls | None] = ContextVar("pagewire_attention_calls", default=None)


@contextmanager
def answered_by(calls: AttentionCalls) -> Iterator[None]:
    """Attention calls of this thread go to `calls` for as long as this is open."""
    token = _calls.set(calls)
    try:
        yield
    finally:
        _calls.reset(token)


def attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """What `AttentionInterface` holds under both names; gives no attention weights."""
    calls = _calls.get()
    if calls is None:
        raise RuntimeError("attention was called outside a step")
    return calls(module, query, key, value, attention_mask, **kwargs), None


class StepCalls:
    """Answers with the paged attention of one step."""

    def __init__(self, attention: StepAttention, spec: AttentionSpec) -> None:
        self._attention = attention
        self._spec = spec

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        # A family may scale each layer differently; a backend has one scale.
        factor = 1.0 if scaling is None else scaling / self._spec.scale
        rows = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
        queries, keys, values = rows  # each [num_tokens, heads, head_dim]
        if factor != 1.0:
            queries = queries * factor
        output = self._attention(layer_index(module), queries, keys, values)
        return output.view(1, *queries.shape)


def layer_index(module: nn.Module) -> int:
    """Which layer calls; -1 where the module does not know."""
    index = getattr(module, "layer_idx", None)
    return index if isinstance(index, int) else -1
