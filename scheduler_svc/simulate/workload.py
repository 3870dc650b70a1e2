"""A workload by numbers: Poisson arrivals, lengths from a distribution, groups that share a prefix.

A pure function of its configuration: the same seed gives the same requests. `trace` has the other
source of requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from pagewire.engine_config import check
from scheduler_svc.simulate.trace import TraceRequest

LengthDistribution = Literal["fixed", "uniform", "exponential", "lognormal"]
_LOGNORMAL_SIGMA = 0.8
"""Of the logarithm: the 95th percentile is about 2.7 times the mean."""


@dataclass(frozen=True, slots=True)
class WorkloadConfig:
    """The generated workload; `--trace` replaces it."""

    num_requests: int = 1000
    """How many requests come."""
    request_rate: float = 10.0
    """Requests a second over all replicas, with exponential gaps (Poisson); 0: all at once."""
    prompt_len: int = 512
    """Mean length of a prompt in tokens, without a shared prefix."""
    output_len: int = 64
    """Mean length of an output in tokens."""
    length_distribution: LengthDistribution = "exponential"
    """Of both lengths around their means. `uniform`: 1 to twice the mean. Lengths are cut to what
    --max-model-len holds."""
    num_prefix_groups: int = 0
    """Every request is of one of so many groups, and begins with the group's prefix; 0: none."""
    prefix_len: int = 256
    """Tokens of a group's prefix."""
    seed: int = 0
    """Of arrivals, lengths and groups."""

    def __post_init__(self) -> None:
        for name in ("num_requests", "prompt_len", "output_len", "prefix_len"):
            value = getattr(self, name)
            check(name, value, 1 <= value <= 10**9, "must be 1 to 1000000000")
        check("request_rate", self.request_rate, self.request_rate >= 0, "must not be negative")
        groups = self.num_prefix_groups
        check("num_prefix_groups", groups, 0 <= groups <= 10**6, "must be 0 to 1000000")


def generate(config: WorkloadConfig, max_model_len: int) -> Iterator[TraceRequest]:
    """Make the requests of a workload one by one, in order of arrival.

    Args:
        config: What to make.
        max_model_len: Prompt and output together fit into it.
    """
    rng = random.Random(config.seed)
    draw_length = _drawer(config.length_distribution, rng)
    num_prefix_tokens = config.prefix_len if config.num_prefix_groups else 0
    arrival_time_s = 0.0
    for _ in range(config.num_requests):
        if config.request_rate > 0:
            arrival_time_s += rng.expovariate(config.request_rate)
        num_prompt = min(num_prefix_tokens + draw_length(config.prompt_len), max_model_len - 1)
        num_output = min(draw_length(config.output_len), max_model_len - num_prompt)
        group = str(rng.randrange(config.num_prefix_groups)) if num_prefix_tokens else None
        yield TraceRequest(
            arrival_time_s, num_prompt, num_output, group, min(num_prefix_tokens, num_prompt)
        )


def _drawer(name: LengthDistribution, rng: random.Random) -> Callable[[int], int]:
    def uniform(mean: int) -> int:
        return rng.randint(1, 2 * mean - 1)

    def exponential(mean: int) -> int:
        return max(1, round(rng.expovariate(1.0 / mean)))

    def lognormal(mean: int) -> int:
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        mu = math.log(mean) - _LOGNORMAL_SIGMA**2 / 2
        return max(1, round(rng.lognormvariate(mu, _LOGNORMAL_SIGMA)))

    drawers: dict[str, Callable[[int], int]] = {
        "fixed": lambda mean: mean,
        "uniform": uniform,
        "exponential": exponential,
        "lognormal": lognormal,
    }
    return drawers[name]
