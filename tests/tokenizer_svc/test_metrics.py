"""What the tokenizer service counts, read through its own port for metrics."""

from __future__ import annotations

from tokenizer_svc.detokenize_session import DetokenizeSession, TokenFrame
from tokenizer_svc.metrics import TokenizerCounters
from tokenizer_svc.model_tokenizer import ModelTokenizer


def values(counters: TokenizerCounters) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in counters.collect()}


async def test_texts_and_tokens_are_counted(byte_level: ModelTokenizer) -> None:
    counters = TokenizerCounters()
    counters.encoded([[1, 2, 3], [], [4]])
    session = DetokenizeSession(byte_level, counters)
    await session.take(TokenFrame(num_new_tokens=5))
    await session.take(TokenFrame(num_new_tokens=2))
    assert values(counters) == {
        "pagewire:tokenizer_encoded_texts": 3,
        "pagewire:tokenizer_encoded_tokens": 4,
        "pagewire:tokenizer_detokenized_tokens": 7,
    }
