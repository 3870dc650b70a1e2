"""A GGUF file's tokenizer as Hugging Face files.

A GGUF file holds tokens, merges or scores and the name of a splitting rule; `convert_gguf` builds
the Rust tokenizer from them and gives it back as tokenizer.json, tokenizer_config.json and
config.json, so that everything behind it knows one format only. Knows nothing of caches and
services.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from pagewire.gguf import GgufError
from tokenizer_svc.gguf_byte_level import adds_bos, byte_level_tokenizer
from tokenizer_svc.gguf_fields import GgufVocabulary, TokenType, read_vocabulary
from tokenizer_svc.gguf_sentencepiece import respell_spaces, sentencepiece_tokenizer

# Goes up with every change of what comes out, so that caches are built again.
CONVERTER_VERSION = 1


def convert_gguf(path: Path) -> dict[str, bytes]:
    """Hugging Face files of a GGUF file's tokenizer, by name.

    Raises:
        GgufError: The file is broken, or its tokenizer is of a kind that we don't know.
    """
    vocabulary = respell_spaces(read_vocabulary(path))
    try:
        tokenizer = build_tokenizer(vocabulary)
    except GgufError as error:
        raise GgufError(f"{path}: {error}") from error
    files: dict[str, Any] = {
        "tokenizer_config.json": _tokenizer_config(vocabulary),
        "config.json": _config(vocabulary),
    }
    encoded = {name: _json_bytes(content) for name, content in files.items()}
    return {"tokenizer.json": tokenizer.to_str().encode(), **encoded}


def build_tokenizer(vocabulary: GgufVocabulary) -> Tokenizer:
    """The Rust tokenizer.

    Raises:
        GgufError: The kind of tokenizer or its splitting rule is unknown, or the fields contradict
            each other.
    """
    if vocabulary.model == "gpt2":
        tokenizer, add_bos = byte_level_tokenizer(vocabulary), adds_bos(vocabulary)
    elif vocabulary.model == "llama":
        # SentencePiece vocabularies get a BOS unless the file says otherwise.
        tokenizer, add_bos = sentencepiece_tokenizer(vocabulary), vocabulary.add_bos is not False
    else:
        raise GgufError(
            f"tokenizer.ggml.model {vocabulary.model!r} is not supported; gpt2 and llama are"
        )
    _add_special_tokens(tokenizer, vocabulary)
    tokenizer.post_processor = _post_processor(vocabulary, add_bos)
    return tokenizer


def _add_special_tokens(tokenizer: Tokenizer, vocabulary: GgufVocabulary) -> None:
    special_types = (TokenType.CONTROL, TokenType.UNKNOWN)
    named = {vocabulary.bos_token_id, vocabulary.unk_token_id, vocabulary.pad_token_id}
    named.update(vocabulary.end_token_ids)
    special, user_defined = [], []
    for token_id, token in enumerate(vocabulary.tokens):
        token_type = vocabulary.token_types[token_id]
        if token_type in special_types or token_id in named:
            special.append(AddedToken(token, normalized=False, special=True))
        elif token_type == TokenType.USER_DEFINED:
            user_defined.append(AddedToken(token, normalized=False, special=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(user_defined)
    if tokenizer.get_vocab_size(with_added_tokens=True) != len(vocabulary.tokens):
        raise GgufError("special tokens change the size of the vocabulary")


def _post_processor(vocabulary: GgufVocabulary, add_bos: bool) -> processors.PostProcessor | None:
    bos, eos = vocabulary.token(vocabulary.bos_token_id), None
    if vocabulary.add_eos and vocabulary.end_token_ids:
        eos = vocabulary.tokens[vocabulary.end_token_ids[0]]
    return bos_eos_processor(
        (bos, vocabulary.bos_token_id or 0) if add_bos and bos is not None else None,
        (eos, vocabulary.end_token_ids[0]) if eos is not None else None,
    )


def bos_eos_processor(
    bos: tuple[str, int] | None, eos: tuple[str, int] | None
) -> processors.PostProcessor | None:
    """Puts these tokens (string, id) around every text that is encoded with special tokens."""
    special = [token for token in (bos, eos) if token is not None]
    if not special:
        return None
    before = [bos[0]] if bos else []
    after = [eos[0]] if eos else []
    return processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, *before, "$B:1", *after],
        special_tokens=special,
    )


def _tokenizer_config(vocabulary: GgufVocabulary) -> dict[str, Any]:
    end = vocabulary.end_token_ids[:1]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": vocabulary.token(vocabulary.bos_token_id),
        "eos_token": vocabulary.tokens[end[0]] if end else None,
        "unk_token": vocabulary.token(vocabulary.unk_token_id),
        "pad_token": vocabulary.token(vocabulary.pad_token_id),
        "model_max_length": vocabulary.context_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": _chat_template(vocabulary),
    }
    return {name: value for name, value in config.items() if value is not None}


def _chat_template(vocabulary: GgufVocabulary) -> str | list[dict[str, str]] | None:
    templates = vocabulary.chat_templates
    if len(templates) > 1:
        return [{"name": name, "template": text} for name, text in sorted(templates.items())]
    return templates.get("default")


def _config(vocabulary: GgufVocabulary) -> dict[str, Any]:
    return {
        "model_type": vocabulary.architecture,
        "vocab_size": len(vocabulary.tokens),
        "bos_token_id": vocabulary.bos_token_id,
        "eos_token_id": list(vocabulary.end_token_ids),
    }


def _json_bytes(content: object) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=1).encode()
