"""Random batches against the slow reference, row by row and bit by bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.engine_config import LogprobsMode
from pagewire.sampling_params import SamplingParams, ThinkingBudget
from tests.worker_svc.runner_factories import bitmask
from tests.worker_svc.sampler.factories import Row, make_batch, make_row
from tests.worker_svc.sampler.reference import Expected, sample_row
from worker_svc.sampler.device_sampler import DeviceSampler
from worker_svc.sampler.grammar import MaskedRows
from worker_svc.sampler.metadata import SamplerOutput, TokenLogprobs
from worker_svc.sampler.sampler import Sampler
from worker_svc.sampler.table import SamplingTable

EOS = (2, 5)
MODES: tuple[LogprobsMode, ...] = (
    "raw_logprobs",
    "processed_logprobs",
    "raw_logits",
    "processed_logits",
)


def random_row(rng: random.Random, vocab_size: int) -> Row:
    """Every parameter set in about a third of the rows."""

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size) for _ in range(count))

    params: dict[str, Any] = {"temperature": rng.choice([0.0, 0.3, 1.0, 1.7])}
    output = [*ids(rng.randrange(6)), *ids(1) * rng.randrange(3)]
    words = [(*output[len(output) - n :], *ids(1)) for n in range(min(3, len(output) + 1))]
    options: dict[str, Any] = {
        "top_k": rng.choice([1, 3, 64, 65, vocab_size - 1, 2 * vocab_size]),
        "top_p": rng.choice([0.001, 0.5, 0.9, 0.999]),
        "min_p": rng.choice([0.001, 0.2, 1.0]),
        "presence_penalty": rng.choice([-1.5, 0.7]),
        "frequency_penalty": rng.choice([-0.3, 1.1]),
        "repetition_penalty": rng.choice([0.7, 1.3]),
        "min_tokens": rng.randrange(12),
        "stop_token_ids": ids(2),
        "logprobs": rng.choice([0, 1, 5, 20]),
        "logit_bias": tuple((i, rng.uniform(-5, 5)) for i in (*ids(3), *ids(1) * 2)),
        "allowed_token_ids": ids(rng.choice([1, 4, 40])),
        "bad_words_token_ids": (*words, (*ids(2),)),
    }
    params |= {name: value for name, value in options.items() if rng.random() < 0.3}
    if rng.random() < 0.2:
        params.pop("logprobs", None)
        params["logprob_token_ids"] = tuple(rng.sample(range(vocab_size), rng.choice([1, 5, 8])))
    if rng.random() < 0.3:
        start, *end = rng.sample(range(vocab_size), rng.choice([2, 3]))
        output += rng.choice([(), (start,), (*ids(2), start), (start, *ids(2), end[0])])
        budget = ThinkingBudget(rng.randrange(4), (start,), tuple(end), rng.choice([None, 0, 2]))
        params["thinking_budget"] = budget
    prompt = ids(rng.randrange(1, 20))
    return make_row(prompt=prompt, output=output, seed=rng.getrandbits(64), **params)


def random_logits(rng: random.Random, num_rows: int, vocab_size: int) -> torch.Tensor:
    """Peaked and flat ones; some rows with many equal values."""
    values = np.random.default_rng(rng.getrandbits(32)).normal(size=(num_rows, vocab_size))
    spread = np.array([[rng.choice([0.01, 1.0, 6.0])] for _ in range(num_rows)])
    logits = (values * spread).astype(np.float32)
    for index in range(num_rows):
        if rng.random() < 0.3:
            logits[index] = np.round(logits[index])
    return torch.from_numpy(logits)


def expected_logprobs(
    expected: Expected, mode: LogprobsMode, params: SamplingParams
) -> TokenLogprobs | None:
    num_top = params.num_logprobs
    if num_top is None:
        return None
    values = torch.from_numpy(expected.raw if mode.startswith("raw") else expected.processed)
    if mode.endswith("logprobs"):
        values = torch.log_softmax(values, -1)
    token_id = expected.token_id
    assert token_id is not None
    top = list(params.logprob_token_ids)
    top = top or np.argsort(-values.numpy(), kind="stable")[:num_top].tolist()
    return TokenLogprobs(
        token_ids=[token_id, *top],
        logprobs=[values[i].item() for i in (token_id, *top)],
        sampled_rank=int((values >= values[token_id]).sum()),
    )


def check(
    output: SamplerOutput, expected: Sequence[Expected], rows: Sequence[Row], mode: LogprobsMode
) -> None:
    for index, (row, reference) in enumerate(zip(rows, expected, strict=True)):
        if reference.token_id is None:
            assert output.failures[index] is not None
            assert output.logprobs[index] is None
            continue
        assert output.failures[index] is None
        assert output.token_ids[index] == reference.token_id, row
        assert output.logprobs[index] == expected_logprobs(reference, mode, row.params), row


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.sampled_from([1, 2, 7]),
    vocab_size=st.sampled_from([8, 64, 100, 1000, 8200]),
    mode=st.sampled_from(MODES),
)
def test_a_batch_gives_what_the_reference_gives_each_row(
    seed: int, num_rows: int, vocab_size: int, mode: LogprobsMode
) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng, vocab_size) for _ in range(num_rows)]
    logits = random_logits(rng, num_rows, vocab_size)
    masks: dict[int, list[int]] = {
        index: rng.sample(range(vocab_size), rng.choice([1, vocab_size // 2]))
        for index in range(num_rows)
        if rng.random() < 0.2
    }
    if rng.random() < 0.2:
        logits[rng.randrange(num_rows), rng.randrange(vocab_size)] = rng.choice([np.nan, np.inf])
    masked = None
    if masks:
        bits = [bitmask(allowed, vocab_size) for allowed in masks.values()]
        masked = MaskedRows(list(masks), np.stack(bits))
    expected = [
        sample_row(logits[index].numpy(), row, EOS, masks.get(index))
        for index, row in enumerate(rows)
    ]
    for kind in (Sampler, DeviceSampler):
        output = kind(EOS, mode).sample(logits.clone(), make_batch(rows), masked)
        check(output, expected, rows, mode)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_place_behind_drafts_is_the_step_after_them(seed: int) -> None:
    rng, vocab_size = random.Random(seed), 300
    rows = [random_row(rng, vocab_size) for _ in range(3)]
    drafts = {
        index: [rng.choice([*row.prompt, *row.output, 7]) for _ in range(rng.randrange(1, 5))]
        for index, row in enumerate(rows)
        if rng.random() < 0.7
    }
    places = [
        Row(row.params, row.seed, row.prompt, [*row.output, *drafts.get(index, ())[:count]])
        for index, row in enumerate(rows)
        for count in range(len(drafts.get(index, ())) + 1)
    ]
    logits = random_logits(rng, len(places), vocab_size)
    expected = [sample_row(logits[i].numpy(), place, EOS) for i, place in enumerate(places)]
    table = SamplingTable()
    slots = [table.add(row.params, row.seed, row.prompt, row.output) for row in rows]
    # Twice: drafts leave nothing behind.
    for _ in range(2):
        output = Sampler(EOS).sample(logits.clone(), table.gather(slots, drafts))
        check(output, expected, places, "raw_logprobs")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_resumed_request_goes_on_as_if_it_had_never_stopped(seed: int) -> None:
    rng, vocab_size = random.Random(seed), 100
    rows = [random_row(rng, vocab_size) for _ in range(4)]
    table, sampler = SamplingTable(), Sampler(EOS)
    slots = [table.add(row.params, row.seed, row.prompt, row.output) for row in rows]
    for _ in range(6):
        logits = random_logits(rng, len(rows), vocab_size)
        running = sampler.sample(logits.clone(), table.gather(slots))
        resumed = sampler.sample(logits.clone(), make_batch(rows))
        assert running.token_ids.tolist() == resumed.token_ids.tolist()
        assert running.logprobs == resumed.logprobs
        # One request or another gets several tokens, as with drafts.
        new = [[rng.randrange(vocab_size) for _ in range(rng.choice([1, 1, 3]))] for _ in rows]
        table.append(slots, new)
        rows = [
            Row(row.params, row.seed, row.prompt, [*row.output, *tokens])
            for row, tokens in zip(rows, new, strict=True)
        ]


def test_a_slot_is_used_again_without_its_last_owner() -> None:
    table = SamplingTable()
    budget = ThinkingBudget(0, (1,), (2,))
    named = {"logprob_token_ids": (3, 4), "thinking_budget": budget}
    penal = make_row(presence_penalty=2.0, output=[1], min_tokens=9, **named)
    first = [table.add(penal.params, 1, penal.prompt, penal.output) for _ in range(100)]
    assert len(set(first)) == 100
    for slot in first:
        table.remove(slot)
    plain = make_row(temperature=0.0)
    second = [table.add(plain.params, 1, plain.prompt, plain.output) for _ in range(100)]
    assert len(set(second)) == 100
    batch = table.gather(second)
    assert not batch.needs.any()
    assert not batch.processed and not batch.logprob_token_ids and not batch.forced
    assert batch.output_indices.tolist() == [0] * 100


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_gives_the_same_bits_alone_and_in_any_batch(num_threads: int) -> None:
    """With a vocabulary of which several chunks of rows are worked on."""
    rng, vocab_size = random.Random(5), 49_152
    rows = [
        make_row(seed=index, logprobs=2, prompt=range(50), output=range(index), **params)
        for index, params in enumerate(
            [
                {},
                {"top_p": 0.9},
                {"top_p": 0.999, "temperature": 1.8},
                {"top_k": 50},
                {"top_k": 2000, "top_p": 0.7},
                {"min_p": 0.05, "repetition_penalty": 1.2},
                {"temperature": 0.0, "presence_penalty": 1.0},
                {"temperature": 0.0},
            ]
            * 2
        )
    ]
    logits = random_logits(rng, len(rows), vocab_size)
    before, sampler = torch.get_num_threads(), Sampler(EOS)
    alone = [sampler.sample(logits[[i]], make_batch([row])) for i, row in enumerate(rows)]
    torch.set_num_threads(num_threads)
    try:
        together = sampler.sample(logits.clone(), make_batch(rows))
    finally:
        torch.set_num_threads(before)
    assert together.token_ids.tolist() == [int(one.token_ids[0]) for one in alone]
    assert together.logprobs == [one.logprobs[0] for one in alone]
