from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tokenizer_svc import detokenize_session
from tokenizer_svc.detokenize_session import DetokenizeSession, OpenRequest, TokenFrame, TokenRow
from tokenizer_svc.detokenizer import DetokenizeOptions, Detokenizer, NewText
from tokenizer_svc.model_tokenizer import ModelTokenizer


class BrokenDetokenizer(Detokenizer):
    """One whose decoder has a bug, or panics."""

    failure: type[BaseException]

    def append(self, *_: Any, **__: Any) -> NewText:
        raise self.failure


PanicException = type("PanicException", (BaseException,), {})


@pytest.fixture
def session(byte_level: ModelTokenizer) -> DetokenizeSession:
    return DetokenizeSession(byte_level)


def opens(*handles: int, **options: Any) -> list[OpenRequest]:
    return [OpenRequest(handle, DetokenizeOptions(**options)) for handle in handles]


async def test_requests_are_open_until_they_end(
    session: DetokenizeSession, byte_level: ModelTokenizer
) -> None:
    ids = byte_level.encode("x", False)
    await session.take(TokenFrame(opens=opens(1, 2, 3), rows=[TokenRow(1, ids)]))
    assert session.num_open == 3
    await session.take(TokenFrame(rows=[TokenRow(1, ids, end=True)], closes=[2]))
    assert session.num_open == 1


async def test_a_handle_is_free_after_its_end(
    session: DetokenizeSession, byte_level: ModelTokenizer
) -> None:
    ids = byte_level.encode("x", False)
    for _ in range(2):
        frame = TokenFrame(opens=opens(1), rows=[TokenRow(1, ids, end=True)])
        assert (await session.take(frame)).texts == ["x"]


async def test_a_stop_in_a_replay_closes_before_the_row(
    session: DetokenizeSession, byte_level: ModelTokenizer
) -> None:
    ids = byte_level.encode("ab", False)
    opened = OpenRequest(1, DetokenizeOptions(stop=("b",)), ids)
    answer = await session.take(TokenFrame(opens=[opened], rows=[TokenRow(1, ids, end=True)]))
    assert (answer.texts, answer.stop_token_offsets) == (["a"], [2])
    assert session.num_open == 0


async def test_one_more_request_than_allowed_is_refused(
    session: DetokenizeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detokenize_session, "MAX_OPEN_REQUESTS", 2)
    answer = await session.take(TokenFrame(opens=opens(1, 2, 3)))
    assert [handle for handle, _ in answer.errors] == [3]
    assert session.num_open == 2


@pytest.mark.parametrize("failure", [ZeroDivisionError, PanicException])
async def test_a_failing_request_harms_no_other(
    session: DetokenizeSession, byte_level: ModelTokenizer, failure: type[BaseException]
) -> None:
    ids = byte_level.encode("x", False)
    await session.take(TokenFrame(opens=opens(1, 2)))
    broken = BrokenDetokenizer(byte_level.decoder_tables, DetokenizeOptions())
    broken.failure = failure
    session._open[1] = broken
    answer = await session.take(TokenFrame(rows=[TokenRow(1, ids), TokenRow(2, ids)]))
    assert answer.errors == [(1, "the output cannot be turned into text")]
    assert (answer.handles, answer.texts) == ([2], ["x"])
    assert session.num_open == 1


async def test_what_is_no_failure_of_a_request_ends_the_stream(
    session: DetokenizeSession, byte_level: ModelTokenizer
) -> None:
    await session.take(TokenFrame(opens=opens(1)))
    broken = BrokenDetokenizer(byte_level.decoder_tables, DetokenizeOptions())
    broken.failure = asyncio.CancelledError
    session._open[1] = broken
    with pytest.raises(asyncio.CancelledError):
        await session.take(TokenFrame(rows=[TokenRow(1, [5])]))


async def test_long_rows_let_others_run_and_lose_nothing(
    session: DetokenizeSession, byte_level: ModelTokenizer
) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ids = byte_level.encode("\u00e9x" * 20_000, False)
    running = asyncio.ensure_future(other())
    answer = await session.take(
        TokenFrame(opens=opens(1), rows=[TokenRow(1, ids, end=True, last_is_stop_token=True)])
    )
    running.cancel()
    assert answer.texts == ["\u00e9x" * 19_999 + "\u00e9"]
    assert answer.token_offsets == [60_000]
    assert turns >= 5


async def test_a_stop_in_a_long_row_is_found(
    session: DetokenizeSession, byte_level: ModelTokenizer
) -> None:
    ids = byte_level.encode("x" * 20_000 + "STOP" + "y" * 20_000, False)
    answer = await session.take(TokenFrame(opens=opens(1, stop=("STOP",)), rows=[TokenRow(1, ids)]))
    assert answer.texts == ["x" * 20_000]
    assert answer.stop_token_offsets == answer.token_offsets == [20_004]
