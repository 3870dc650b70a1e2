"""Small vocabularies for grammars: every byte, some longer tokens, special ones, and gaps."""

from __future__ import annotations

from pagewire.sampling_params import StructuredOutputs
from scheduler_svc.grammar import Grammar
from scheduler_svc.grammar_backend import GrammarBackend
from scheduler_svc.vocabulary import Vocabulary

BOS, EOS, IM_END = 256, 257, 258
# Long tokens that overlap, a duplicate, and one that ends within a character.
LONGER = (
    *('{"', '": ', '", "', "true", "false", "null", "he", "hello", "llo", "ab", "he", ", ", "12"),
    *("name", '": "', "é", "\U0001f600", '"}', "}}", "[", "]]", " the", "0.", "item"),
)
TOKENS: tuple[bytes, ...] = (
    *(bytes([byte]) for byte in range(256)),
    *(b"<s>", b"</s>", b"<|im_end|>"),
    b"",  # an id that is not used
    *(token.encode() for token in LONGER),
    "é\U0001f600".encode()[:4],
)
VOCAB_SIZE = len(TOKENS) + 13
"""The model has more logits than there are tokens, and not a multiple of 8 of them."""
ROW_SIZE = -(-VOCAB_SIZE // 8)
SPECIAL = frozenset({BOS, EOS, IM_END})
VOCABULARY = Vocabulary(TOKENS, SPECIAL, "fingerprint")


def make_backend(cache_size: int = 8) -> GrammarBackend:
    return GrammarBackend(VOCABULARY, VOCAB_SIZE, frozenset({EOS, IM_END}), cache_size)


def rows(masks: bytes) -> list[set[int]]:
    """The allowed ids of each row."""
    assert len(masks) % ROW_SIZE == 0
    return [
        allowed_ids(masks[start : start + ROW_SIZE]) for start in range(0, len(masks), ROW_SIZE)
    ]


def allowed_ids(row: bytes) -> set[int]:
    return {i for i in range(len(row) * 8) if row[i // 8] >> (i % 8) & 1}


def allowed(grammar: Grammar) -> set[int]:
    """Ids that are allowed now."""
    return rows(grammar.masks(()))[0]


def accept_text(grammar: Grammar, text: str) -> bool:
    """Whether the grammar takes a text, byte by byte."""
    return all(grammar.accept(byte) for byte in text.encode())


def text_of(token_ids: list[int]) -> bytes:
    return b"".join(TOKENS[token_id] for token_id in token_ids if token_id not in SPECIAL)


FORMS: dict[str, StructuredOutputs] = {
    "choice": StructuredOutputs(choice=("hello", "hell", "he", "hello", 'a"b\\\n/é\U0001f600\x01')),
    "regex": StructuredOutputs(regex=r"(ab|hello){1,3}[é/\"][0-9]{2}"),
    "grammar": StructuredOutputs(
        grammar='start: item (", " item)*\nitem: WORD | "[" start "]"\nWORD: /[a-c]{1,3}/'
    ),
    "json_object": StructuredOutputs(json_object=True),
    "json_schema": StructuredOutputs(
        json_schema="""{"type": "object", "additionalProperties": false,
        "required": ["name", "tags", "ok"], "properties": {
            "name": {"type": "string", "maxLength": 6}, "ok": {"enum": [true, null, 12]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 3},
            "size": {"type": "integer", "minimum": 3, "maximum": 1200}},
        "$defs": {"tag": {"anyOf": [{"const": "h\u00e9"}, {"type": "number"}]}}}"""
    ),
}
