"""The vocabulary, from a real tokenizer service and from one that misbehaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pagewire.kit.server import ServerConfig
from pagewire.kit.sockets import make_runtime_dir
from pagewire.sampling_params import StructuredOutputs
from pagewire.tokenizer_fingerprint import fingerprint_of_model
from pagewire.v1 import tokenizer_pb2
from scheduler_svc.grammar_backend import GrammarBackend
from scheduler_svc.vocabulary_client import VocabularyClient, VocabularyError, fetch_vocabulary
from tests.fakes.fake_tokenizer import BOS, EOS, FINGERPRINT, VOCAB_SIZE, FakeTokenizer
from tests.tokenizer_svc.factories import byte_level_gguf
from tokenizer_svc.config import TokenizerServiceConfig
from tokenizer_svc.server import TokenizerServer


class OddTokenizer(FakeTokenizer):
    """Sends the slices that it is told to send."""

    def __init__(self, slices: list[Any]) -> None:
        super().__init__()
        self.slices = slices

    async def GetVocabulary(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for part in self.slices:
            yield part


def part(first_token_id: int, num_tokens: int) -> tokenizer_pb2.GetVocabularyResponse:
    tokens = [b"x"] * num_tokens
    return tokenizer_pb2.GetVocabularyResponse(first_token_id=first_token_id, tokens=tokens)


async def test_tokens_and_special_ids_are_those_of_the_tokenizer() -> None:
    async with FakeTokenizer() as tokenizer:
        vocabulary = await fetch_vocabulary(tokenizer.target, FINGERPRINT)
    assert vocabulary.token_bytes[:256] == tuple(bytes([byte]) for byte in range(256))
    assert vocabulary.special_token_ids == {BOS, EOS}
    assert vocabulary.fingerprint == FINGERPRINT
    assert len(vocabulary.token_bytes) == VOCAB_SIZE


async def test_slices_are_put_together() -> None:
    async with OddTokenizer([part(0, 200), part(200, 58)]) as tokenizer:
        vocabulary = await fetch_vocabulary(tokenizer.target, FINGERPRINT)
    assert len(vocabulary.token_bytes) == VOCAB_SIZE


@pytest.mark.parametrize(
    "slices",
    [[], [part(0, 257)], [part(0, 200), part(201, 57)], [part(0, 258), part(0, 258)]],
    ids=["nothing", "too few", "a gap", "twice"],
)
async def test_a_vocabulary_with_gaps_is_none(slices: list[Any]) -> None:
    async with OddTokenizer(slices) as tokenizer:
        with pytest.raises(VocabularyError, match="it sent"):
            await fetch_vocabulary(tokenizer.target, FINGERPRINT)


async def test_a_tokenizer_of_another_vocabulary_is_refused() -> None:
    async with FakeTokenizer(fingerprint="other") as tokenizer:
        with pytest.raises(VocabularyError, match="another vocabulary"):
            await fetch_vocabulary(tokenizer.target, FINGERPRINT)


async def test_the_first_tokenizer_that_has_the_vocabulary_is_taken() -> None:
    mismatches: list[None] = []
    async with FakeTokenizer(fingerprint="other") as other, FakeTokenizer() as right:
        client = VocabularyClient((other.target, right.target))
        vocabulary = await client.fetch(FINGERPRINT, lambda: mismatches.append(None))
    assert vocabulary.fingerprint == FINGERPRINT
    assert mismatches == []


async def test_a_tokenizer_that_comes_later_is_found_and_waits_grow_to_a_bound() -> None:
    listen = f"unix:{make_runtime_dir() / 'late.sock'}"
    waits: list[float] = []
    started: list[FakeTokenizer] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 9:
            tokenizer = FakeTokenizer(listen=listen)
            started.append(await tokenizer.__aenter__())

    client = VocabularyClient((listen,), sleep=sleep)
    try:
        vocabulary = await client.fetch(FINGERPRINT, lambda: pytest.fail("nobody answered"))
    finally:
        for tokenizer in started:
            await tokenizer.__aexit__()
    assert len(vocabulary.token_bytes) == VOCAB_SIZE
    assert waits[0] == 0.1 and waits[:9] == sorted(waits[:9]) and max(waits) == 5.0


async def test_a_mismatch_is_told_and_asked_about_again() -> None:
    mismatches: list[None] = []
    async with FakeTokenizer(fingerprint="other") as tokenizer:

        async def sleep(seconds: float) -> None:
            if len(mismatches) == 2:
                tokenizer.fingerprint = FINGERPRINT  # it was restarted with the right model

        client = VocabularyClient((tokenizer.target,), sleep=sleep)
        await client.fetch(FINGERPRINT, lambda: mismatches.append(None))
    assert len(mismatches) == 2


async def test_grammars_over_a_real_tokenizers_vocabulary(tmp_path: Path) -> None:
    """The small byte-level tokenizer of a GGUF file, served by the tokenizer service itself."""
    model = byte_level_gguf().write(tmp_path / "model.gguf")
    server = TokenizerServer(
        TokenizerServiceConfig(
            model=str(model), server=ServerConfig(listen="127.0.0.1:0", drain_timeout_s=0.0)
        )
    )
    await server.start()
    try:
        fingerprint = fingerprint_of_model(model)
        vocabulary = await fetch_vocabulary(server.server.address, fingerprint)
    finally:
        await server.stop()
    eos, start = 0, 1
    assert vocabulary.special_token_ids == {eos, start}
    size = len(vocabulary.token_bytes)
    backend = GrammarBackend(vocabulary, size, frozenset({eos}), cache_size=1)
    grammar = backend.compile(StructuredOutputs(choice=("hello w", "<|end|>")))
    assert grammar.accept(vocabulary.token_bytes.index(b"hello"))
    forced = grammar.forced_tokens(3)
    assert [vocabulary.token_bytes[i] for i in forced] == [b" w"]
    assert grammar.accept(forced[0]) and grammar.is_complete
