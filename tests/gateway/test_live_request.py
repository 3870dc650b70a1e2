"""What one output delivers: tokens and their logprobs up to an offset, and how it ended."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from gateway.generation import AbortReason, Finished, FinishReason, Logprob, Output
from gateway.live_request import Spelling
from gateway.logprobs import LogprobRow
from gateway.output_collector import OutputCollector
from pagewire.kit.errors import InternalError
from tests.fakes.fake_tokenizer import EOS
from tests.gateway.live import add_tokens, finish, make_live

STOP = FinishReason.STOP


async def test_logprobs_go_with_the_tokens_that_are_delivered() -> None:
    collector = OutputCollector(10**6)
    live = make_live(collector, logprobs=1)
    add_tokens(live, 5, 6, 7)
    live.deliver("ab", 2, Spelling(output=[b"a", b"a", b"b", b"b"]))
    (output,) = await collector.take()
    assert output.token_ids == [5, 6]
    assert [place.token for place in output.logprobs] == [
        Logprob(5, b"a", -1.0, 1),
        Logprob(6, b"b", -1.0, 1),
    ]
    live.deliver("c", 3, Spelling(output=[b"c", b"C"]))
    (output,) = await collector.take()
    assert [place.top[0].token_bytes for place in output.logprobs] == [b"C"]
    assert live.waiting_logprobs == []


async def test_a_stop_string_ends_tokens_and_logprobs_with_the_token_that_completed_it() -> None:
    collector = OutputCollector(10**6)
    live = make_live(collector, logprobs=0, stop=("x",))
    live.owner = owner = Mock()
    add_tokens(live, 5, 6, 7)
    live.stop_at("a", 2, 0, Spelling(output=[b"a", b"x", b"b"]))
    (output,) = await collector.take()
    assert (output.token_ids, len(output.logprobs)) == ([5, 6], 2)
    assert output.finished == Finished(STOP, stop_string="x")
    assert (live.output_token_ids, live.num_delivered_tokens) == ([5, 6], 2)
    owner.abort.assert_called_once_with(live, AbortReason.STOP_STRING)
    live.deliver("b", 3)  # what comes late counts for nothing
    assert live.num_delivered_tokens == 2


async def test_the_prompts_logprobs_come_once_and_begin_with_a_token_that_has_none() -> None:
    collector = OutputCollector(10**6)
    live = make_live(collector, prompt=(1, 2, 3), prompt_logprobs=0)
    live.waiting_prompt_logprobs = [LogprobRow(-1.0, 1, [], []), LogprobRow(-2.0, 1, [], [])]
    add_tokens(live, 5)
    live.deliver("a", 1, Spelling(prompt=[b"x", b"y", b"z"]))
    (output,) = await collector.take()
    assert output.first_prompt_token == b"x"
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    logprobs = [place.token for place in output.prompt_logprobs[1:] if place is not None]
    assert logprobs == [Logprob(2, b"y", -1.0, 1), Logprob(3, b"z", -2.0, 1)]
    add_tokens(live, 6)
    live.deliver("b", 2)
    assert (await collector.take())[0].prompt_logprobs is None


@pytest.mark.parametrize(
    ("stop_token_ids", "token_id", "expected"),
    [
        ((), EOS, Finished(STOP, eos_token_id=EOS)),
        ((EOS,), EOS, Finished(STOP, stop_token_id=EOS)),
        ((7,), 7, Finished(STOP, stop_token_id=7)),
    ],
    ids=["eos", "eos as a stop token", "stop token"],
)
async def test_what_ended_an_output_is_told_apart(
    stop_token_ids: tuple[int, ...], token_id: int, expected: Finished
) -> None:
    collector = OutputCollector(10**6)
    live = make_live(collector, stop_token_ids=stop_token_ids)
    add_tokens(live, token_id)
    finish(live, STOP, token_id)
    live.complete("", 1)
    assert await collector.take() == [Output(0, "", [token_id], expected)]


async def test_tokens_without_the_logprobs_that_were_asked_for_are_not_taken() -> None:
    live = make_live(logprobs=0)
    row = LogprobRow(-1.0, 1, [], [])
    assert not live.add_tokens([5], None)
    assert not live.add_tokens([5], [row, row])
    assert live.output_token_ids == []
    assert live.add_tokens([5], [row])


async def test_usage_keeps_the_cached_tokens_of_the_first_admission() -> None:
    live = make_live()
    live.note_scheduled(3, 0.0)
    live.note_scheduled(9, 0.0)
    assert live.num_cached_tokens == 3


async def test_a_failure_before_admission_is_a_refusal_and_a_later_one_ends_the_output() -> None:
    collector = OutputCollector(10**6)
    admitted = make_live(collector)
    admitted.fail(InternalError("later"))
    with pytest.raises(InternalError, match="later"):
        await collector.take()
    waiting = make_live()
    waiting.admission = waiting.admission.get_loop().create_future()
    waiting.fail(InternalError("refused"))
    with pytest.raises(InternalError, match="refused"):
        await waiting.admission
