"""The sampler's rules, one row and one rule at a time, slow and obvious.

What `worker_svc.sampler` does for all places together is held against this, bit for bit: logits in
float32, sums in float64 in the order that docs/design/draws.md gives.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagewire.sampling_params import SamplingParams, ThinkingBudget
from tests.worker_svc.sampler.factories import Row
from worker_svc.sampler.philox import uniforms

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Expected:
    """What one row gives."""

    token_id: int | None
    """None: it fails."""
    processed: Float32s
    """Logits that the token was chosen from: truncated, divided by the temperature."""
    raw: Float32s
    """Logits that a grammar left."""


def sample_row(
    logits: Float32s, row: Row, eos: Sequence[int], allowed: Sequence[int] | None = None
) -> Expected:
    raw = logits.copy()
    if allowed is not None:
        raw[[i for i in range(len(raw)) if i not in set(allowed)]] = -np.inf
    changed = process(raw, row, eos)
    if not np.all(logits < np.inf) or np.all(changed == -np.inf):
        return Expected(None, changed, raw)
    processed = truncate(changed, row.params)
    if row.params.is_greedy:
        return Expected(int(np.argmax(changed)), processed, raw)
    weights = exp(processed - processed.max())
    [uniform] = uniforms(np.array([row.seed], np.uint64), np.array([len(row.output)], np.uint64))
    return Expected(draw(weights, float(uniform)), processed, raw)


def process(logits: Float32s, row: Row, eos: Sequence[int]) -> Float32s:
    """In vLLM's order."""
    params, output = row.params, list(row.output)
    values = logits.copy()
    if params.allowed_token_ids:
        values[[i for i in range(len(values)) if i not in params.allowed_token_ids]] = -np.inf
    for word in params.bad_words_token_ids:
        beginning = list(word[:-1])
        if not beginning or output[-len(beginning) :] == beginning:
            values[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        values[list(eos)] = -np.inf
        values[list(params.stop_token_ids)] = -np.inf
    for token_id, bias in params.logit_bias:
        values[token_id] += np.float32(bias)
    repetition = np.float32(params.repetition_penalty)
    for token_id in {*row.prompt, *output} if repetition != 1 else ():
        value = values[token_id]
        values[token_id] = value / repetition if value > 0 else value * repetition
    for token_id in set(output):
        times = np.float32(output.count(token_id)) * np.float32(params.frequency_penalty)
        values[token_id] -= times + np.float32(params.presence_penalty)
    forced = None
    if params.thinking_budget is not None:
        forced = forced_token(params.thinking_budget, output)
    if forced is not None and logits[forced] > -np.inf:
        values[:] = -np.inf
        values[forced] = 0
    return values


def forced_token(budget: ThinkingBudget, output: Sequence[int]) -> int | None:
    """vLLM's rule on the whole output, put behind the thinking that the prompt leaves open."""
    start, end = budget.start_token_ids, budget.end_token_ids
    if budget.num_open_tokens is not None:
        output = [*start, *[-1] * budget.num_open_tokens, *output]
    begin = _last_place(output, start)
    if begin < 0 or begin < _last_place(output, end):
        return None
    if len(output) - begin - len(start) < budget.max_tokens:
        return None
    written = [n for n in range(1, len(end)) if tuple(output[-n:]) == end[:n]]
    return end[max(written, default=0)]


def _last_place(output: Sequence[int], tag: Sequence[int]) -> int:
    places = range(len(output) - len(tag) + 1)
    return max((i for i in places if tuple(output[i : i + len(tag)]) == tuple(tag)), default=-1)


def truncate(values: Float32s, params: SamplingParams) -> Float32s:
    """Divides by the temperature and drops what min_p, top_k and top_p leave out."""
    if params.is_greedy:
        return values
    scaled = values / np.float32(params.temperature)
    falling = np.sort(scaled)[::-1]
    lowest = -math.inf
    if params.min_p > 0.0:
        lowest = float(np.float32(float(falling[0]) + math.log(params.min_p)))
    if 0 < params.top_k < len(scaled):
        lowest = max(lowest, float(falling[params.top_k - 1]))
    if params.top_p < 1.0:
        kept = np.where(scaled >= lowest, exp(scaled - falling[0]), np.float32(0))
        wanted = params.top_p * np.cumsum(kept, dtype=np.float64)[-1]
        reached = np.cumsum(exp(falling - falling[0]), dtype=np.float64) >= wanted
        place = int(np.argmax(reached)) if reached.any() else len(falling) - 1
        lowest = max(lowest, float(falling[place]))
    return np.where(scaled >= lowest, scaled, np.float32(-np.inf))


def draw(weights: Float32s, uniform: float) -> int:
    """The first token whose cumulative weight exceeds the uniform's share of the total."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    above = np.flatnonzero(cumulative > uniform * cumulative[-1])
    return int(above[0]) if len(above) else int(np.argmax(cumulative == cumulative[-1]))


def exp(values: Float32s) -> Float32s:
    """Of torch: another library's differs in the last bit."""
    result: Float32s = torch.exp(torch.from_numpy(np.ascontiguousarray(values))).numpy()
    return result
