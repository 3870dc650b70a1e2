"""Fetches the model's vocabulary from a tokenizer service, once, however long it takes.

The scheduler needs it for structured outputs only, so nothing else waits for it, and a tokenizer
that is absent or has another model's vocabulary harms nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc

from pagewire.kit.channels import open_channel
from pagewire.kit.logs import get_logger
from pagewire.kit.tls import PeerTls
from pagewire.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from scheduler_svc.vocabulary import Vocabulary

INFO_TIMEOUT_S = 5.0
VOCABULARY_TIMEOUT_S = 30.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0

_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_MAX_TOKENS = 4_000_000
_MAX_BYTES = 256 * 1024 * 1024

log = get_logger("scheduler_svc.vocabulary_client")


class VocabularyError(Exception):
    """This tokenizer is of no use; the message says why, for the log."""


class OtherVocabularyError(VocabularyError):
    """It has another vocabulary than the model."""


class VocabularyClient:
    """Belongs to one event loop."""

    def __init__(
        self,
        targets: Sequence[str],
        tls: PeerTls | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._targets = targets
        self._tls = tls
        self._sleep = sleep

    async def fetch(self, fingerprint: str, on_mismatch: Callable[[], None]) -> Vocabulary:
        """Ask the tokenizers in turn, again and again, until one has the model's vocabulary.

        Args:
            fingerprint: Of the model's vocabulary.
            on_mismatch: Called after each round in which only tokenizers of other vocabularies
                answered.
        """
        backoff_s = FIRST_BACKOFF_S
        last_problems: dict[str, str] = {}
        while True:
            problems: dict[str, str] = {}
            num_mismatches = 0
            for target in self._targets:
                try:
                    return await fetch_vocabulary(target, fingerprint, self._tls)
                except grpc.aio.AioRpcError as error:
                    problems[target] = f"{error.code().name}: {error.details()}"
                except VocabularyError as error:
                    problems[target] = str(error)
                    num_mismatches += isinstance(error, OtherVocabularyError)
            # A tokenizer that still loads is no reason to worry anybody.
            is_worth_a_warning = num_mismatches > 0 or backoff_s >= MAX_BACKOFF_S
            if problems != last_problems and is_worth_a_warning:
                log.warning("no_vocabulary", problems=problems)
                last_problems = problems
            if num_mismatches == len(self._targets):
                on_mismatch()
            await self._sleep(backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)


async def fetch_vocabulary(target: str, fingerprint: str, tls: PeerTls | None = None) -> Vocabulary:
    """Fetch the vocabulary of one tokenizer, if it is the model's.

    Raises:
        OtherVocabularyError: It is another one.
        VocabularyError: What came is none.
        grpc.aio.AioRpcError: The call failed.
    """
    async with open_channel(target, tls=tls, max_message_bytes=_MAX_MESSAGE_BYTES) as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        info = await stub.GetTokenizerInfo(
            tokenizer_pb2.GetTokenizerInfoRequest(), timeout=INFO_TIMEOUT_S
        )
        if info.fingerprint != fingerprint:
            raise OtherVocabularyError("it has another vocabulary than the model")
        tokens: list[bytes] = []
        special_token_ids: set[int] = set()
        num_bytes = 0
        slices = stub.GetVocabulary(
            tokenizer_pb2.GetVocabularyRequest(), timeout=VOCABULARY_TIMEOUT_S
        )
        async for part in slices:
            if part.first_token_id != len(tokens):
                raise VocabularyError("it sent its vocabulary out of order")
            tokens += part.tokens
            special_token_ids.update(part.special_token_ids)
            num_bytes += part.ByteSize()
            if len(tokens) > _MAX_TOKENS or num_bytes > _MAX_BYTES:
                raise VocabularyError("its vocabulary is too large")
        if len(tokens) != info.vocab_size:
            raise VocabularyError(f"it sent {len(tokens)} of {info.vocab_size} tokens")
        return Vocabulary(tuple(tokens), frozenset(special_token_ids), fingerprint)
