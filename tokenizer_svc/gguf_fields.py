"""The tokenizer's fields of a GGUF header, checked once and named.

Everything that turns them into a tokenizer works on `GgufVocabulary`; nothing behind it touches raw
metadata. Knows no tokenizer library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from pagewire.gguf import GgufError, read_gguf

_PREFIX = "tokenizer.ggml."
_ARRAYS = ("tokens", "merges", "token_type", "scores")
# End-of-generation ids; the first is the one that a tokenizer calls eos.
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(IntEnum):
    """What a token is, with GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """Tokens in the order of their ids, and how to use them."""

    architecture: str
    model: str
    """Kind of tokenizer: `gpt2` (byte-level BPE) or `llama` (SentencePiece-like)."""
    pre: str | None
    """Name of the rule that splits text before merging."""
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    merges: tuple[tuple[str, str], ...] | None
    scores: tuple[float, ...] | None
    bos_token_id: int | None = None
    unk_token_id: int | None = None
    pad_token_id: int | None = None
    end_token_ids: tuple[int, ...] = ()
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_space_prefix: bool | None = None
    context_length: int | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """Templates by name; the main one is `default`."""

    def token(self, token_id: int | None) -> str | None:
        return None if token_id is None else self.tokens[token_id]


def read_vocabulary(path: Path) -> GgufVocabulary:
    """Read and check the tokenizer of a GGUF file.

    Raises:
        GgufError: The file is broken, has no tokenizer, or its fields don't fit together.
    """
    metadata = read_gguf(path, keys=[_PREFIX + name for name in _ARRAYS]).metadata
    fields = {
        name.removeprefix(_PREFIX): value
        for name, value in metadata.items()
        if name.startswith(_PREFIX)
    }
    if not isinstance(fields.get("tokens"), list):
        raise GgufError(f"{path}: no {_PREFIX}tokens: the file has no tokenizer")
    tokens = _tokens(path, fields)
    ids = {name: _token_id(path, fields, name, len(tokens)) for name in (*_END_KEYS, *_ID_KEYS)}
    architecture = str(metadata.get("general.architecture"))
    context_length = metadata.get(f"{architecture}.context_length")
    return GgufVocabulary(
        architecture=architecture,
        model=str(fields.get("model")),
        pre=_text(fields.get("pre")),
        tokens=tokens,
        token_types=_token_types(path, fields, len(tokens)),
        merges=_merges(path, fields),
        scores=_scores(path, fields, len(tokens)),
        bos_token_id=ids["bos_token_id"],
        unk_token_id=ids["unknown_token_id"],
        pad_token_id=ids["padding_token_id"],
        end_token_ids=_unique([ids[name] for name in _END_KEYS]),
        add_bos=_flag(fields, "add_bos_token"),
        add_eos=_flag(fields, "add_eos_token"),
        add_space_prefix=_flag(fields, "add_space_prefix"),
        context_length=context_length if isinstance(context_length, int) else None,
        chat_templates=_chat_templates(metadata),
    )


_ID_KEYS = ("bos_token_id", "unknown_token_id", "padding_token_id")


def _tokens(path: Path, fields: Mapping[str, Any]) -> tuple[str, ...]:
    # Some files leave unused ids empty; every id needs a name of its own.
    tokens = tuple(str(token) or f"[EMPTY_{index}]" for index, token in enumerate(fields["tokens"]))
    if len(set(tokens)) != len(tokens):
        raise GgufError(f"{path}: a token is in the vocabulary twice")
    return tokens


def _token_types(path: Path, fields: Mapping[str, Any], num_tokens: int) -> tuple[int, ...]:
    types = fields.get("token_type")
    if types is None:
        return (int(TokenType.NORMAL),) * num_tokens
    if not isinstance(types, np.ndarray) or len(types) != num_tokens:
        raise GgufError(f"{path}: token_type does not have one number for each token")
    return tuple(types.tolist())


def _scores(path: Path, fields: Mapping[str, Any], num_tokens: int) -> tuple[float, ...] | None:
    scores = fields.get("scores")
    if scores is None:
        return None
    if not isinstance(scores, np.ndarray) or len(scores) != num_tokens:
        raise GgufError(f"{path}: scores does not have one number for each token")
    return tuple(scores.tolist())


def _merges(path: Path, fields: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    if "merges" not in fields:
        return None
    pairs = []
    for merge in fields["merges"]:
        left, space, right = str(merge).partition(" ")
        if not (left and space and right) or " " in right:
            raise GgufError(f"{path}: {merge!r} is not a merge of two tokens")
        pairs.append((left, right))
    return tuple(pairs)


def _token_id(path: Path, fields: Mapping[str, Any], name: str, num_tokens: int) -> int | None:
    token_id = fields.get(name)
    if token_id is None:
        return None
    if not isinstance(token_id, int) or not 0 <= token_id < num_tokens:
        raise GgufError(f"{path}: {_PREFIX}{name} is {token_id!r}, not an id of the vocabulary")
    return token_id


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    main = "tokenizer.chat_template"
    templates = {"default": str(metadata[main])} if main in metadata else {}
    for name, value in metadata.items():
        if name.startswith(f"{main}.") and isinstance(value, str):
            templates[name.removeprefix(f"{main}.")] = value
    return templates


def _flag(fields: Mapping[str, Any], name: str) -> bool | None:
    value = fields.get(name)
    return value if isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _unique(ids: list[int | None]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))
