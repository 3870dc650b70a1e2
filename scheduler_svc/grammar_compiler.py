"""Makes grammars and their masks off the event loop; the engine's only way to either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pagewire.engine_config import StructuredOutputsConfig
from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import Grammar, GrammarError


@dataclass(frozen=True, slots=True)
class GrammarModel:
    """What grammars need to know of the engine's model."""

    vocab_size: int
    eos_token_ids: frozenset[int]
    tokenizer_fingerprint: str


class GrammarCompiler:
    """Belongs to one event loop. `open` once the model is known, `close` at the end."""

    def __init__(self, config: StructuredOutputsConfig, tokenizers: Sequence[str]) -> None:
        raise NotImplementedError

    def open(self, model: GrammarModel) -> None:
        """Begin to fetch the model's vocabulary; called when the first worker is ready."""
        raise NotImplementedError

    def start(
        self,
        request_id: str,
        structured_outputs: StructuredOutputs,
        output_token_ids: Sequence[int],
        on_ready: Callable[[Grammar], None],
        on_failed: Callable[[GrammarError], None],
    ) -> None:
        """Make a request's grammar; one of the callbacks is called on the loop, later than this."""
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        """Forget a request: none of its callbacks is called any more. Unknown ids: nothing."""
        raise NotImplementedError

    async def masks(
        self, jobs: Sequence[tuple[Grammar, Sequence[int]]]
    ) -> list[bytes | GrammarError]:
        """The masks of a step: for each (grammar, drafts) what `Grammar.masks` gives or raises."""
        raise NotImplementedError

    async def close(self) -> None:
        """End everything; idempotent."""
        raise NotImplementedError
