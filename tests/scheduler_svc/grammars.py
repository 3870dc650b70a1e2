"""Grammars and a compiler for tests: a text of given tokens, without any library or thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.engine_config import StructuredOutputsConfig
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import Grammar, GrammarError
from scheduler_svc.grammar_compiler import (
    GrammarCompiler,
    GrammarModel,
    MaskJob,
    OnFailed,
    OnReady,
)


class TextGrammar(Grammar):
    """Exactly these tokens, one after another; complete behind the last one."""

    def __init__(self, token_ids: Sequence[int], *, is_open: bool = False) -> None:
        self.token_ids = list(token_ids)
        self.num_accepted = 0
        self.num_masks = 0
        self.mask_error: GrammarError | None = None
        self._is_open = is_open
        """Anything may follow the text, so it never is complete."""

    @property
    def is_complete(self) -> bool:
        return self.num_accepted >= len(self.token_ids) and not self._is_open

    def accept(self, token_id: int) -> bool:
        self.num_accepted += 1
        return self.valid_from(self.num_accepted - 1, token_id)

    def valid_from(self, place: int, token_id: int) -> bool:
        if place >= len(self.token_ids):
            return self._is_open
        return self.token_ids[place] == token_id

    def forced_tokens(self, max_tokens: int) -> list[int]:
        return self.token_ids[self.num_accepted : self.num_accepted + max_tokens]

    def valid_prefix(self, token_ids: Sequence[int]) -> int:
        for index, token_id in enumerate(token_ids):
            if not self.valid_from(self.num_accepted + index, token_id):
                return index
        return len(token_ids)

    def masks(self, draft_token_ids: Sequence[int]) -> bytes:
        self.num_masks += 1
        if self.mask_error is not None:
            raise self.mask_error
        return bytes([self.num_accepted]) * (1 + len(draft_token_ids))


@dataclass
class GrammarJob:
    """What the compiler was asked for."""

    output_token_ids: list[int]
    on_ready: OnReady
    on_failed: OnFailed
    is_resumed: bool


class FakeGrammars(GrammarCompiler):
    """A compiler whose grammars the test makes; masks are made at once."""

    def __init__(self) -> None:
        super().__init__(StructuredOutputsConfig(), ())
        self.models: list[GrammarModel] = []
        self.jobs: dict[str, GrammarJob] = {}
        self.cancelled: list[str] = []
        self._changed = asyncio.Event()
        self.in_masks = asyncio.Event()
        """Set while masks are being made."""
        self.go_on = asyncio.Event()
        self.go_on.set()

    def open(self, model: GrammarModel) -> None:
        self.models.append(model)

    def start(
        self,
        request_id: str,
        structured_outputs: StructuredOutputs,
        output_token_ids: Sequence[int],
        on_ready: OnReady,
        on_failed: OnFailed,
        *,
        is_resumed: bool = False,
    ) -> None:
        self.jobs[request_id] = GrammarJob(list(output_token_ids), on_ready, on_failed, is_resumed)
        self._changed.set()

    async def wait_started(self, request_id: str) -> None:
        async with asyncio.timeout(10):
            while request_id not in self.jobs:
                self._changed.clear()
                await self._changed.wait()

    def make_ready(self, request_id: str, grammar: Grammar) -> None:
        self.jobs[request_id].on_ready(grammar)

    def fail(self, request_id: str, error: GrammarError) -> None:
        self.jobs[request_id].on_failed(error)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    async def masks(self, jobs: Sequence[MaskJob]) -> list[bytes | GrammarError]:
        self.in_masks.set()
        await self.go_on.wait()
        self.in_masks.clear()
        return [_masks_or_error(grammar, drafts) for grammar, drafts in jobs]


def _masks_or_error(grammar: Grammar, drafts: Sequence[int]) -> bytes | GrammarError:
    try:
        return grammar.masks(drafts)
    except GrammarError as error:
        return error
