"""What every TokenizerService does, the real one and the fake: cases for a connected stub.

A test module gives a `stub` fixture and imports the cases (`from ...conformance import *`). They
assume nothing of the vocabulary: ids come from `Encode`, and texts are plain ASCII or emoji.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import pytest

from pagewire.v1 import common_pb2, tokenizer_pb2

__all__ = [
    "test_a_chat_becomes_text_and_its_ids",
    "test_a_closed_request_gives_no_more_text",
    "test_a_conversation_without_messages_is_refused",
    "test_a_heartbeat_is_not_a_frame",
    "test_a_replayed_request_gives_its_whole_text_again",
    "test_a_stop_string_closes_its_request_only",
    "test_a_text_that_ends_gives_what_was_held_back",
    "test_a_text_that_is_too_long_is_refused",
    "test_an_emoji_comes_whole",
    "test_bad_words_have_two_rows_each",
    "test_context_is_no_text",
    "test_decoding_undoes_encoding",
    "test_extra_ids_come_back_as_bytes",
    "test_frames_are_answered_in_order",
    "test_special_tokens_are_left_out_or_kept",
    "test_stop_strings_wait_for_min_tokens",
    "test_the_info_is_complete",
    "test_the_stop_token_is_counted_and_no_text",
    "test_the_vocabulary_is_complete",
    "test_tokens_of_a_closed_request_are_ignored",
]


class Stream:
    """A Detokenize stream that sends one frame and waits for its answer."""

    def __init__(self, stub: Any) -> None:
        self.call = stub.Detokenize()
        self.num_frames = 0

    async def send(
        self,
        rows: Sequence[tuple[int, Sequence[int]]] = (),
        *,
        ends: Sequence[int] = (),
        stop_tokens: Sequence[int] = (),
        **fields: Any,
    ) -> Any:
        """Send rows of (handle, token ids); `ends`, `stop_tokens` name handles. Heartbeats pass."""
        self.num_frames += 1
        await self.call.write(
            tokenizer_pb2.DetokenizeRequest(
                frame=self.num_frames,
                handles=[handle for handle, _ in rows],
                token_counts=[len(ids) for _, ids in rows],
                token_ids=[token_id for _, ids in rows for token_id in ids],
                ends=[handle in ends for handle, _ in rows],
                last_is_stop_token=[handle in stop_tokens for handle, _ in rows],
                **fields,
            )
        )
        return await self.answer()

    async def answer(self) -> Any:
        while not (answer := await self.call.read()).frame:
            pass
        return answer

    async def close(self) -> None:
        """End cleanly; raises if the server did not."""
        await self.call.write(tokenizer_pb2.DetokenizeRequest(close=True))
        assert await self.call.read() is grpc.aio.EOF
        assert await self.call.code() is grpc.StatusCode.OK


def opened(handle: int, **fields: Any) -> tokenizer_pb2.DetokenizeOpen:
    return tokenizer_pb2.DetokenizeOpen(handle=handle, **fields)


def texts(answer: Any) -> dict[int, str]:
    """Text by handle; of two rows of one handle, both."""
    assert len(answer.handles) == len(answer.texts) == len(answer.token_offsets)
    joined: dict[int, str] = {}
    for handle, text in zip(answer.handles, answer.texts, strict=True):
        joined[handle] = joined.get(handle, "") + text
    return joined


async def encode(stub: Any, text: str) -> list[int]:
    request = tokenizer_pb2.EncodeRequest(texts=[text], add_special_tokens=False)
    return list((await stub.Encode(request)).rows[0].ids)


async def test_the_info_is_complete(stub: Any) -> None:
    info = await stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest())
    assert len(info.fingerprint) == 64
    assert info.vocab_size > max(info.eos_token_ids)
    assert info.has_chat_template
    assert info.max_prompt_bytes >= 1 << 20


async def test_decoding_undoes_encoding(stub: Any) -> None:
    given = ["Hello, world!", "", "  two  spaces \U0001f600"]
    request = tokenizer_pb2.EncodeRequest(texts=given, add_special_tokens=False)
    rows = (await stub.Encode(request)).rows
    answer = await stub.Decode(tokenizer_pb2.DecodeRequest(rows=rows))
    assert list(answer.texts) == given


async def test_special_tokens_are_left_out_or_kept(stub: Any) -> None:
    info = await stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest())
    rows = [common_pb2.TokenIds(ids=[*await encode(stub, "a"), info.eos_token_ids[0]])]
    assert (await stub.Decode(tokenizer_pb2.DecodeRequest(rows=rows))).texts == ["a"]


async def test_bad_words_have_two_rows_each(stub: Any) -> None:
    request = tokenizer_pb2.EncodeRequest(texts=["bad", "word"], bad_word_variants=True)
    rows = [list(row.ids) for row in (await stub.Encode(request)).rows]
    expected = [await encode(stub, text) for text in ("bad", " bad", "word", " word")]
    assert rows == expected


async def test_a_text_that_is_too_long_is_refused(stub: Any) -> None:
    info = await stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await encode(stub, "a" * (info.max_prompt_bytes + 1))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await encode(stub, "a")


async def test_a_chat_becomes_text_and_its_ids(stub: Any) -> None:
    request = tokenizer_pb2.RenderChatRequest()
    request.messages.add(role="user", content="What is up?")
    answer = await stub.RenderChat(request)
    assert "What is up?" in answer.text
    assert list(answer.token_ids) == await encode(stub, answer.text)


async def test_a_conversation_without_messages_is_refused(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.RenderChat(tokenizer_pb2.RenderChatRequest())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_the_vocabulary_is_complete(stub: Any) -> None:
    info = await stub.GetTokenizerInfo(tokenizer_pb2.GetTokenizerInfoRequest())
    tokens: list[bytes] = []
    special: list[int] = []
    async for part in stub.GetVocabulary(tokenizer_pb2.GetVocabularyRequest(slice_size=1000)):
        assert part.first_token_id == len(tokens)
        assert 0 < len(part.tokens) <= 1000
        tokens += part.tokens
        special += part.special_token_ids
    assert len(tokens) == info.vocab_size
    assert set(info.eos_token_ids) <= set(special)
    assert (
        b"".join(tokens[i] for i in await encode(stub, "Hi \U0001f600")) == b"Hi \xf0\x9f\x98\x80"
    )


async def test_frames_are_answered_in_order(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "abc")
    first = await stream.send([(1, ids)], opens=[opened(1), opened(2)])
    second = await stream.send([(2, ids), (1, ids)])
    assert (first.frame, second.frame) == (1, 2)
    assert texts(first) == {1: "abc"}
    assert texts(second) == {1: "abc", 2: "abc"}
    assert list(second.token_offsets) == [len(ids), 2 * len(ids)]
    await stream.close()


async def test_context_is_no_text(stub: Any) -> None:
    stream = Stream(stub)
    context, ids = await encode(stub, "the prompt"), await encode(stub, "!")
    answer = await stream.send([(1, ids)], opens=[opened(1, context_token_ids=context)])
    assert texts(answer) == {1: "!"}
    assert list(answer.token_offsets) == [len(ids)]
    await stream.close()


async def test_an_emoji_comes_whole(stub: Any) -> None:
    stream = Stream(stub)
    shown = [texts(await stream.send(opens=[opened(1)])).get(1, "")]
    for token_id in await encode(stub, "\U0001f600"):
        shown.append(texts(await stream.send([(1, [token_id])]))[1])
    assert set(shown) <= {"", "\U0001f600"}
    assert "".join(shown) == "\U0001f600"
    await stream.close()


async def test_a_stop_string_closes_its_request_only(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "one STOP")
    opens = [opened(1, stop=["nope", "STOP"]), opened(2)]
    answer = await stream.send([(1, ids), (2, ids)], opens=opens)
    assert texts(answer) == {1: "one ", 2: "one STOP"}
    assert list(answer.stop_handles) == [1]
    assert list(answer.stop_indexes) == [1]
    assert list(answer.stop_token_offsets) == [len(ids)]
    assert texts(await stream.send([(2, ids)])) == {2: "one STOP"}
    await stream.close()


async def test_tokens_of_a_closed_request_are_ignored(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "x")
    answer = await stream.send([(1, ids)], opens=[opened(1, stop=["x"])])
    assert list(answer.stop_handles) == [1]
    answer = await stream.send([(1, ids)], ends=[1], closes=[1, 7])
    assert (list(answer.handles), list(answer.errors)) == ([], [])
    await stream.close()


async def test_stop_strings_wait_for_min_tokens(stub: Any) -> None:
    stream = Stream(stub)
    [token_id] = await encode(stub, "x")
    opens = [opened(1, stop=["x"], min_tokens=2)]
    answer = await stream.send([(1, [token_id] * 4)], opens=opens)
    assert texts(answer) == {1: "xx"}
    assert list(answer.stop_token_offsets) == [3]
    await stream.close()


async def test_a_text_that_ends_gives_what_was_held_back(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "ab")
    assert texts(await stream.send([(1, ids)], opens=[opened(1, stop=["abc"])])) == {1: ""}
    assert texts(await stream.send([(1, [])], ends=[1])) == {1: "ab"}
    answer = await stream.send([(1, ids)], opens=[opened(1)])
    assert texts(answer) == {1: "ab"}
    await stream.close()


async def test_the_stop_token_is_counted_and_no_text(stub: Any) -> None:
    stream = Stream(stub)
    ids = [*await encode(stub, "a"), *await encode(stub, "b")]
    answer = await stream.send([(1, ids)], ends=[1], stop_tokens=[1], opens=[opened(1)])
    assert texts(answer) == {1: "a"}
    assert list(answer.token_offsets) == [len(ids)]
    await stream.close()


async def test_a_replayed_request_gives_its_whole_text_again(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "one two three")
    answer = await stream.send([(5, ids[2:])], opens=[opened(5, output_token_ids=ids[:2])])
    assert texts(answer) == {5: "one two three"}
    assert list(answer.token_offsets) == [2, len(ids)]
    await stream.close()


async def test_a_closed_request_gives_no_more_text(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "a")
    await stream.send([(1, ids)], opens=[opened(1)])
    await stream.send(closes=[1])
    assert list((await stream.send([(1, ids)])).handles) == []
    await stream.close()


async def test_extra_ids_come_back_as_bytes(stub: Any) -> None:
    stream = Stream(stub)
    ids = await encode(stub, "a")
    extra = [*await encode(stub, "b"), *await encode(stub, "c"), 2**31]
    answer = await stream.send(
        [(1, ids)], opens=[opened(1)], extra_counts=[3], extra_token_ids=extra
    )
    assert list(answer.extra_token_bytes) == [b"b", b"c", b""]
    await stream.close()


async def test_a_heartbeat_is_not_a_frame(stub: Any) -> None:
    stream = Stream(stub)
    beat = common_pb2.Heartbeat(sequence=1)
    await stream.call.write(tokenizer_pb2.DetokenizeRequest(heartbeat=beat))
    answer = await stream.send([(1, await encode(stub, "a"))], opens=[opened(1)])
    assert (answer.frame, texts(answer)) == (1, {1: "a"})
    await stream.close()
