"""A model's tokenizer in use: encode, decode, and the tables for incremental decoding.

All methods are plain, thread-safe and without state; whoever calls them decides on threads. Knows
nothing of requests, limits or files' origins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from tokenizer_svc.incremental_decoder import DecoderTables
from tokenizer_svc.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class ModelTokenizer:
    """One model's tokenizer with everything that its files say about it."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    fingerprint: str
    special_tokens: Mapping[str, str]
    """Names such as `bos_token` to tokens: variables of chat templates."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_templates: Mapping[str, str]
    files: Mapping[str, bytes]

    decoder_tables: DecoderTables = field(init=False)

    def __post_init__(self) -> None:
        tables = DecoderTables(self.tokenizer, self.vocabulary)
        object.__setattr__(self, "decoder_tables", tables)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        # The batch form lets other threads run meanwhile; the single form holds the GIL.
        rows = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [row.ids for row in rows]

    def decode_batch(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool) -> list[str]:
        return self.tokenizer.decode_batch(
            [list(row) for row in rows], skip_special_tokens=skip_special_tokens
        )
