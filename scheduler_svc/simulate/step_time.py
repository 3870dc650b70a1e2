"""How long a GPU would take for a step: a roofline over weights, KV and operations.

    linear layers: max(2 x parameters x tokens / rate,  weight bytes / bandwidth)
    attention:     max(4 x layers x heads x head_dim x pairs / rate,  KV bytes read / bandwidth)
    step:          both, and a fixed overhead

`pairs` are the (query, key) pairs under the causal mask. It knows what a step says and no policy,
no clock; `virtual_engine` calls it once a step, with work per row only in C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, mul
from typing import Protocol

from scheduler_svc.output import SchedulerOutput
from scheduler_svc.request import Request
from scheduler_svc.simulate.hardware import GPUS, HardwareConfig

_computed_after = attrgetter("num_computed_tokens")


class StepTime(Protocol):
    """A model of a step's duration."""

    def seconds(self, output: SchedulerOutput) -> float:
        """Seconds for a step that was just scheduled."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes, summed over its rows."""

    num_tokens: int
    num_context_tokens: int
    """Tokens whose KV is read."""
    num_pairs: int
    """(query, key) pairs of the causal attention."""


def step_work(requests: Sequence[Request], num_scheduled_tokens: Sequence[int]) -> StepWork:
    """Sum up a step right after `schedule`, when `num_computed_tokens` includes it.

    A row of n new tokens that ends at context c has n x c pairs less those over the diagonal.
    """
    contexts = list(map(_computed_after, requests))
    num_tokens = sum(num_scheduled_tokens)
    over_diagonal = (sum(map(mul, num_scheduled_tokens, num_scheduled_tokens)) - num_tokens) // 2
    num_pairs = sum(map(mul, num_scheduled_tokens, contexts)) - over_diagonal
    return StepWork(num_tokens, sum(contexts), num_pairs)


class Roofline:
    """The step time of a GPU and a model."""

    def __init__(self, config: HardwareConfig) -> None:
        gpu, model = GPUS[config.gpu], config.model_shape
        flops_per_s = gpu.flops_per_s * config.num_gpus * config.flops_efficiency
        bytes_per_s = gpu.bytes_per_s * config.num_gpus * config.bandwidth_efficiency
        self.weight_bytes = model.num_parameters * config.bytes_per_parameter
        self.kv_bytes_per_token = (
            2 * model.num_layers * model.num_kv_heads * model.head_dim * config.bytes_per_kv_value
        )
        self._overhead_s = config.step_overhead_us / 1e6
        self._weights_s = self.weight_bytes / bytes_per_s
        self._token_s = 2 * model.num_parameters / flops_per_s
        self._context_s = self.kv_bytes_per_token / bytes_per_s
        self._pair_s = 4 * model.num_layers * model.num_heads * model.head_dim / flops_per_s

    def seconds(self, output: SchedulerOutput) -> float:
        """Seconds for the step; none if it only tells the worker what ended."""
        if not output.requests:
            return 0.0
        work = step_work(output.requests, output.num_scheduled_tokens)
        linear_s = max(self._token_s * work.num_tokens, self._weights_s)
        attention_s = max(self._pair_s * work.num_pairs, self._context_s * work.num_context_tokens)
        return self._overhead_s + linear_s + attention_s
