"""What the detokenizer has to send, and what becomes of the answers, without a stream."""

from __future__ import annotations

import pytest

from gateway.detokenizer import Detokenizer
from gateway.generation import FinishReason, Output
from gateway.live_request import NOTHING_SPELLED, Spelling
from gateway.logprobs import LogprobRow
from gateway.output_collector import OutputCollector
from pagewire.kit.errors import InternalError, ServiceUnavailableError
from tests.gateway.live import add_tokens, finish, make_live

FINGERPRINT = "f"


def make_detokenizer() -> Detokenizer:
    detokenizer = Detokenizer(recovery_timeout_s=60)
    detokenizer.restart(FINGERPRINT)
    return detokenizer


async def test_a_request_gathers_tokens_until_it_is_sent() -> None:
    detokenizer, live = make_detokenizer(), make_live()
    for token_id in (5, 6):
        add_tokens(live, token_id)
        detokenizer.push([live])
    (entry,), closes = detokenizer.take_work(100)
    assert (entry.request, entry.num_unsent_tokens, closes) == (live, 2, [])
    assert not detokenizer.has_work.is_set()
    assert detokenizer.take_work(100) == ([], [])


async def test_a_frame_is_full_when_tokens_and_spelled_ones_reach_the_bound() -> None:
    detokenizer = make_detokenizer()
    plain, wordy = make_live(), make_live(index=1, logprobs=3, prompt_logprobs=0)
    wordy.waiting_prompt_logprobs = [LogprobRow(-1.0, 1, [], [])] * 10
    add_tokens(plain, 5, 6)
    add_tokens(wordy, 5)
    detokenizer.push([wordy, plain])
    (entry,), _ = detokenizer.take_work(15)
    assert entry.num_unsent_tokens == 1 + 4 + 10
    assert detokenizer.has_work.is_set()
    (entry,), _ = detokenizer.take_work(15)
    assert entry.request is plain


async def test_after_a_loss_delivered_text_is_dropped_from_the_replay() -> None:
    collector = OutputCollector(10**6)
    detokenizer, live = make_detokenizer(), make_live(collector)
    add_tokens(live, 5, 6)
    detokenizer.push([live])
    (entry,), _ = detokenizer.take_work(100)
    detokenizer.on_text(entry.handle, "ab", 2, False, NOTHING_SPELLED)
    add_tokens(live, 7)
    finish(live, FinishReason.LENGTH)
    detokenizer.push([live])

    detokenizer.on_lost()
    detokenizer.restart(FINGERPRINT)
    (again,), _ = detokenizer.take_work(100)
    assert again.handle != entry.handle
    assert (again.num_replayed_tokens, again.num_chars_to_drop) == (2, 2)
    detokenizer.on_text(entry.handle, "late", 2, False, NOTHING_SPELLED)
    detokenizer.on_text(again.handle, "abc", 3, True, Spelling())
    (output,) = await collector.take()
    assert (output.text, output.token_ids) == ("abc", [5, 6, 7])
    assert live.is_over


async def test_a_request_that_is_forgotten_is_closed_once_if_it_was_opened() -> None:
    detokenizer, unsent, sent = make_detokenizer(), make_live(), make_live(index=1)
    for live in (unsent, sent):
        add_tokens(live, 5)
    detokenizer.push([unsent])
    detokenizer.forget(unsent)
    assert detokenizer.take_work(100) == ([], [])
    detokenizer.push([sent])
    (entry,), _ = detokenizer.take_work(100)
    entry.is_opened = True
    detokenizer.forget(sent)
    detokenizer.forget(sent)
    assert detokenizer.take_work(100) == ([], [entry.handle])


async def test_what_cannot_be_detokenized_fails_alone() -> None:
    collectors = [OutputCollector(10**6), OutputCollector(10**6)]
    detokenizer = make_detokenizer()
    bad, good = (make_live(collector, index=i) for i, collector in enumerate(collectors))
    for live in (bad, good):
        add_tokens(live, 5)
    detokenizer.push([bad, good])
    entries, _ = detokenizer.take_work(100)
    detokenizer.on_error(entries[0].handle, "broken")
    detokenizer.on_text(entries[1].handle, "x", 1, False, NOTHING_SPELLED)
    assert await collectors[1].take() == [Output(1, "x", [5])]
    with pytest.raises(InternalError) as caught:
        await collectors[0].take()
    assert caught.value.reason == "DETOKENIZE_FAILED"


async def test_another_vocabulary_ends_what_was_open() -> None:
    collector = OutputCollector(10**6)
    detokenizer, live = make_detokenizer(), make_live(collector)
    add_tokens(live, 5)
    detokenizer.push([live])
    detokenizer.restart("another")
    assert live.is_over
    with pytest.raises(ServiceUnavailableError) as caught:
        await collector.take()
    assert caught.value.reason == "TOKENIZER_CHANGED"
    assert detokenizer.take_work(100) == ([], [])
