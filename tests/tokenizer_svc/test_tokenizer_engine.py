from __future__ import annotations

from collections.abc import Iterator

import pytest

from pagewire.kit.errors import InvalidRequestError
from tokenizer_svc.chat_template import ChatRequest, ChatTemplates
from tokenizer_svc.model_tokenizer import ModelTokenizer
from tokenizer_svc.tokenizer_engine import MAX_BATCH, MAX_MESSAGES, Limits, TokenizerEngine
from tokenizer_svc.work_pool import WorkPool

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def engine(byte_level: ModelTokenizer) -> Iterator[TokenizerEngine]:
    pool = WorkPool(1)
    yield make(byte_level, pool)
    pool.close()


def make(model: ModelTokenizer, pool: WorkPool, trust: bool = False) -> TokenizerEngine:
    templates = ChatTemplates(model.chat_templates, model.special_tokens)
    return TokenizerEngine(model, templates, Limits(10_000, trust), pool)


async def test_small_and_large_texts_are_encoded(engine: TokenizerEngine) -> None:
    texts = ["hello", "hello" * 2_000]
    for text in texts:
        [ids] = await engine.encode([text], True)
        assert await engine.decode([ids], True) == [text]


async def test_the_limit_is_in_bytes(engine: TokenizerEngine) -> None:
    assert await engine.encode(["a" * 10_000], False)
    for text in ("a" * 10_001, "\u20ac" * 3_334):
        with pytest.raises(InvalidRequestError, match="at most 10000"):
            await engine.encode(["ok", text], False)


async def test_too_many_texts_are_refused(engine: TokenizerEngine) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await engine.encode([""] * (MAX_BATCH + 1), False)
    assert caught.value.field == "texts"


async def test_too_many_rows_are_refused(engine: TokenizerEngine) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await engine.decode([[]] * (MAX_BATCH + 1), False)
    assert caught.value.field == "rows"


async def test_ids_outside_the_vocabulary_are_no_text(engine: TokenizerEngine) -> None:
    [ids] = await engine.encode(["hello"], False)
    assert await engine.decode([[2**32 - 1, *ids, 10**6]], True) == ["hello"]


async def test_a_chat_is_not_given_special_tokens_twice(engine: TokenizerEngine) -> None:
    rendered = await engine.render_chat(ChatRequest([USER]), 100)
    assert rendered.text == "<|start|>user: hello<|end|><|start|>assistant: "
    assert rendered.token_ids == engine.model.encode(rendered.text, False)


async def test_a_chat_gets_special_tokens_that_its_template_leaves_out(
    sentencepiece: ModelTokenizer,
) -> None:
    pool = WorkPool(1)
    engine = make(sentencepiece, pool, trust=True)
    bare, special = [
        await engine.render_chat(
            ChatRequest([USER], chat_template="hello", add_special_tokens=wanted), 100
        )
        for wanted in (False, True)
    ]
    assert special.token_ids == [sentencepiece.bos_token_id, *bare.token_ids]
    pool.close()


async def test_too_many_messages_are_refused(engine: TokenizerEngine) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await engine.render_chat(ChatRequest([USER] * (MAX_MESSAGES + 1)), 100)
    assert caught.value.field == "messages"


async def test_a_rendered_text_that_is_too_long_is_refused(engine: TokenizerEngine) -> None:
    # 10,000 characters are fine for the template; in bytes they are too many.
    message = {"role": "user", "content": "\u20ac" * 9_000}
    with pytest.raises(InvalidRequestError, match="bytes"):
        await engine.render_chat(ChatRequest([message]), 9_000)


async def test_a_requests_template_needs_trust(byte_level: ModelTokenizer) -> None:
    pool = WorkPool(1)
    request = ChatRequest([USER], chat_template="X")
    with pytest.raises(InvalidRequestError, match="--trust-request-chat-template"):
        await make(byte_level, pool).render_chat(request, 100)
    rendered = await make(byte_level, pool, trust=True).render_chat(request, 100)
    assert rendered.text == "X"
    pool.close()
