"""What a transformers model's layers ask of attention, and whether paged attention can give it.

A few tokens go through the model with an attention that only looks: what each layer passes becomes
the `AttentionSpec`, and what would change the numbers and is not implemented is refused by name. A
second pass with the tokens in another order shows that, attention aside, no token reaches another
one and that positions are those that were given. Called once a load.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from worker_svc.attention.base import AttentionSpec
from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.transformers_attention import answered_by, layer_index

PROBE_TOKENS = 8
# They say nothing that paged attention would have to do.
_HARMLESS = ("dropout", "position_ids", "use_cache", "cache_position", "output_router_logits")
_TOLERANCE = {torch.float32: 1e-3}
_ROUNDED_TOLERANCE = 5e-2

_longest: ContextVar[int] = ContextVar("pagewire_probe_longest", default=PROBE_TOKENS)


@dataclass(frozen=True, slots=True)
class LayerCall:
    """What one layer passed."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None
    window: int | None


class ProbeCalls:
    """Answers with a mix of each token's own query, key and value, and notes what was passed."""

    def __init__(self) -> None:
        self.layers: list[LayerCall] = []

    def __call__(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        _check_tensors(query, key, value)
        mask_window = None if attention_mask is None else _window_of_mask(attention_mask)
        self.layers.append(
            LayerCall(
                layer=layer_index(module),
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                head_dim=query.shape[3],
                scale=_read_scale(kwargs, query.shape[3]),
                softcap=kwargs.pop("softcap", None),
                window=_read_window(kwargs, mask_window, attention_mask is not None),
            )
        )
        _refuse_others(kwargs)
        if not getattr(module, "is_causal", True):
            raise UnsupportedModelError("its attention is not causal")
        group = query.shape[1] // key.shape[1]
        keys, values = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        # Bounded, and different for the same token at another position.
        mixed = values * (1 + torch.tanh(query * keys))
        return mixed.transpose(1, 2).contiguous()


def probe_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., torch.Tensor],
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> torch.Tensor:
    """Stands for a mask, [batch, 1, q, kv] int64: its sliding window everywhere, 0 for none.

    Registered as transformers' mask function for the probe.

    Raises:
        UnsupportedModelError: It hides something else than the future and what a window leaves out.
    """
    last = max(_longest.get(), kv_length) - 1
    every = torch.arange(last + 1, device=device)
    visible = int(_evaluate(mask_function, torch.tensor(last, device=device), every).sum())
    window = 0 if visible == last + 1 else visible
    # The last one but one tells a window from chunks that end with the last.
    queries = torch.cat((every[:kv_length], every[-2:]))[:, None]
    expected = every <= queries
    if window:
        expected &= every > queries - window
    if not torch.equal(_evaluate(mask_function, queries, every), expected):
        raise UnsupportedModelError("its attention mask is neither causal nor a sliding window")
    return torch.full((batch_size, 1, q_length, kv_length), window, device=device)


def probe_layers(
    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    num_layers: int,
    vocab_size: int,
    max_model_len: int,
) -> AttentionSpec:
    """Runs one forward pass and gives what all layers asked for.

    Args:
        forward: Token ids and positions, [num_tokens] int64 each, to anything.
        num_layers: How many layers the config has.
        vocab_size: Tokens to choose from.
        max_model_len: Longest sequence; windows are looked for up to there.

    Raises:
        UnsupportedModelError: Paged attention cannot give what a layer asks for.
    """
    calls = ProbeCalls()
    token_ids, positions = probe_inputs(vocab_size=vocab_size, max_model_len=max_model_len)
    reset = _longest.set(max_model_len)
    try:
        with answered_by(calls):
            forward(token_ids, positions)
    finally:
        _longest.reset(reset)
    return _spec(calls.layers, num_layers)


def check_locality(
    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    vocab_size: int,
    max_model_len: int,
) -> None:
    """Checks that a token's row depends on itself and on its given position alone.

    Args:
        forward: Token ids and positions to hidden states [num_tokens, hidden_size].
        vocab_size: Tokens to choose from.
        max_model_len: Positions to choose from.

    Raises:
        UnsupportedModelError: Something beside attention mixes tokens, or positions are not used.
    """
    token_ids, positions = probe_inputs(vocab_size=vocab_size, max_model_len=max_model_len)
    order = torch.roll(torch.arange(len(token_ids)), 3).flip(0)
    others = token_ids.clone()
    others[0] = (token_ids[0] + 1) % vocab_size
    with answered_by(ProbeCalls()):
        first = forward(token_ids, positions)
        second = forward(others[order], positions[order])
    kept = order != 0
    before, after = first[order[kept]].float(), second[kept].float()
    tolerance = _TOLERANCE.get(first.dtype, _ROUNDED_TOLERANCE)
    if not bool(first.isfinite().all()):
        raise UnsupportedModelError("its hidden states are not finite: are its weights damaged?")
    if bool(((before - after).norm(dim=1) > tolerance * before.norm(dim=1)).any()):
        raise UnsupportedModelError(
            "its tokens reach each other outside attention, or it counts positions itself"
        )


def probe_inputs(*, vocab_size: int, max_model_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and positions of a probe, [num_tokens] int64 each."""
    positions = torch.arange(min(PROBE_TOKENS, max_model_len))
    return (positions * (vocab_size // PROBE_TOKENS) + 1) % vocab_size, positions


def _evaluate(
    mask_function: Callable[..., torch.Tensor], queries: torch.Tensor, keys: torch.Tensor
) -> torch.Tensor:
    """What queries see, bool, broadcast over both."""
    # The first sequence and head stand for all: a probe has one sequence, without padding.
    visible = mask_function(0, 0, queries, keys)
    return visible.broadcast_to((*queries.shape[:-1], keys.shape[0]))


def _check_tensors(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    if query.shape[3] != key.shape[3] or key.shape != value.shape:
        raise UnsupportedModelError("its keys and values have different sizes")
    if query.shape[1] % key.shape[1]:
        raise UnsupportedModelError("its query heads are no multiple of its key heads")


def _read_scale(kwargs: dict[str, Any], head_dim: int) -> float:
    scaling = kwargs.pop("scaling", None)
    return head_dim**-0.5 if scaling is None else float(scaling)


def _window_of_mask(mask: torch.Tensor) -> int | None:
    if mask.dtype != torch.int64 or bool((mask != mask.flatten()[0]).any()):
        raise UnsupportedModelError("it builds an attention mask of its own")
    return int(mask.flatten()[0]) or None


def _read_window(kwargs: dict[str, Any], in_mask: int | None, has_mask: bool) -> int | None:
    """The mask is what transformers' plain attention goes by; the argument must not contradict."""
    passed = kwargs.pop("sliding_window", None)
    if not has_mask:
        return None if passed is None else int(passed)
    longest = _longest.get()
    if passed is not None and min(passed, longest) != min(in_mask or longest, longest):
        raise UnsupportedModelError(
            f"its mask has a window of {in_mask}, its layer one of {passed}"
        )
    return in_mask


def _refuse_others(kwargs: dict[str, Any]) -> None:
    wanted = {
        name
        for name, value in kwargs.items()
        if name not in _HARMLESS and value is not None and value is not False
    }
    if kwargs.get("is_causal") is True:
        wanted.discard("is_causal")
    if kwargs.get("is_causal") is False:
        wanted.add("is_causal")
    if wanted:
        raise UnsupportedModelError(f"its attention takes {', '.join(sorted(wanted))}")


def _spec(calls: list[LayerCall], num_layers: int) -> AttentionSpec:
    if [call.layer for call in calls] != list(range(num_layers)):
        raise UnsupportedModelError(
            f"of its {num_layers} layers these call transformers' attention interface, each once "
            f"being needed: {[call.layer for call in calls]}"
        )
    shapes = {(call.num_heads, call.num_kv_heads, call.head_dim) for call in calls}
    if len(shapes) > 1 or len({call.softcap for call in calls}) > 1:
        raise UnsupportedModelError("its layers differ in their heads or soft-capping")
    first = calls[0]
    return AttentionSpec(
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        scale=first.scale,
        sliding_windows=tuple(call.window for call in calls),
        softcap=first.softcap,
    )
