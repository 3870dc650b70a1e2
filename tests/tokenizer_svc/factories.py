"""Small tokenizers, built through the same GGUF path as real ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.pagewire.gguf_builder import (
    ARRAY,
    BOOL,
    F32,
    I32,
    U32,
    GgufBuilder,
    number,
    numbers,
    strings,
)
from tokenizer_svc.byte_alphabet import SPELLINGS
from tokenizer_svc.gguf_fields import TokenType
from tokenizer_svc.gguf_tokenizer import convert_gguf
from tokenizer_svc.hf_tokenizer import load_tokenizer
from tokenizer_svc.model_tokenizer import ModelTokenizer

SPECIALS = ("<|end|>", "<|start|>")
MERGES = ("h e", "l l", "he ll", "hell o", "\u0120 w", "\u0120 \u0120", "\u0120\u0120 \u0120\u0120")
TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)


def byte_level_gguf(
    pre: str = "smollm", merges: Sequence[str] = MERGES, unmerged: Sequence[str] = ()
) -> GgufBuilder:
    """Two special tokens, the 256 bytes, one user-defined token, the merged ones, and others."""
    merged = [merge.replace(" ", "") for merge in merges]
    tokens = [*SPECIALS, *SPELLINGS, "<think>", *merged, *unmerged]
    types = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokens) - 2)
    types[258] = TokenType.USER_DEFINED
    builder = GgufBuilder().text("general.architecture", "llama")
    builder.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre)
    builder.key("tokenizer.ggml.tokens", ARRAY, strings(tokens))
    builder.key("tokenizer.ggml.token_type", ARRAY, numbers(I32, [int(t) for t in types]))
    builder.key("tokenizer.ggml.merges", ARRAY, strings(list(merges)))
    builder.key("tokenizer.ggml.bos_token_id", U32, number(U32, 1))
    builder.key("tokenizer.ggml.eos_token_id", U32, number(U32, 0))
    return builder.text("tokenizer.chat_template", TEMPLATE)


WORDS = ("\u2581", "h", "e", "l", "o", "w", "he", "ll", "hell", "hello", "\u2581w", "\u2581hello")


def sentencepiece_gguf(architecture: str = "llama", add_space_prefix: bool = True) -> GgufBuilder:
    """<unk>, <s>, </s>, the 256 byte tokens, and WORDS, later ones with better scores."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *WORDS]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types += [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(WORDS)
    scores = [0.0] * 259 + [float(index) for index in range(len(WORDS))]
    builder = GgufBuilder().text("general.architecture", architecture)
    builder.text("tokenizer.ggml.model", "llama")
    builder.key("tokenizer.ggml.tokens", ARRAY, strings(tokens))
    builder.key("tokenizer.ggml.token_type", ARRAY, numbers(I32, [int(t) for t in types]))
    builder.key("tokenizer.ggml.scores", ARRAY, numbers(F32, scores))
    builder.key("tokenizer.ggml.bos_token_id", U32, number(U32, 1))
    builder.key("tokenizer.ggml.eos_token_id", U32, number(U32, 2))
    builder.key("tokenizer.ggml.unknown_token_id", U32, number(U32, 0))
    return builder.key("tokenizer.ggml.add_space_prefix", BOOL, number(BOOL, add_space_prefix))


def load_gguf(builder: GgufBuilder, directory: Path) -> ModelTokenizer:
    path = builder.write(directory / "model.gguf")
    return load_tokenizer(convert_gguf(path), "fingerprint")
