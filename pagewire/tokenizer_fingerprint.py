"""Whether two services read the same vocabulary: a digest over token ids and their strings.

The worker and the tokenizer service each compute it from their own copy of the model; the gateway
compares. Builds no tokenizer, so it is cheap enough for every start. Knows nothing of merges,
pre-tokenization or templates: a changed merge list alone is not seen.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from pagewire.gguf import GgufError, read_gguf

TOKENS_KEY = "tokenizer.ggml.tokens"
# Of tokenizers without a tokenizer.json: the first kind that is there is the vocabulary.
_SLOW_VOCABULARIES = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "vocab.txt",
    "qwen.tiktoken",
)
_HEAD = struct.Struct("<II")


def vocabulary_fingerprint(tokens: Iterable[tuple[int, str]]) -> str:
    """SHA-256 (hex) over (token id, token string) pairs, in ascending order of ids.

    Each pair is encoded as id and byte length, two little-endian 32-bit numbers, then UTF-8 bytes.

    Raises:
        ValueError: An id is there twice.
    """
    by_id = sorted(tokens)
    ids = [token_id for token_id, _ in by_id]
    texts = [token.encode("utf-8", "surrogatepass") for _, token in by_id]
    if len(set(ids)) < len(ids):
        twice = next(token_id for token_id, after in pairwise(ids) if token_id == after)
        raise ValueError(f"token id {twice} is in the vocabulary twice")
    # By the interpreter's own loops: at each start it is done over 50,000 tokens and more.
    heads = map(_HEAD.pack, ids, map(len, texts))
    return sha256(b"".join(chain.from_iterable(zip(heads, texts, strict=True)))).hexdigest()


def fingerprint_of_model(path: Path | str) -> str:
    """The fingerprint of a .gguf file's or Hugging Face directory's vocabulary.

    Raises:
        ValueError: There is no vocabulary that we can read; the message names the path.
    """
    path = Path(path)
    if path.is_dir():
        return _fingerprint_of_directory(path)
    tokens = read_gguf(path, keys=(TOKENS_KEY,)).metadata.get(TOKENS_KEY)
    if not isinstance(tokens, list):
        raise GgufError(f"{path}: no {TOKENS_KEY}: the file has no vocabulary")
    return vocabulary_fingerprint((index, str(token)) for index, token in enumerate(tokens))


def huggingface_vocabulary(tokenizer_json: dict[str, Any]) -> dict[int, str]:
    """Ids and strings of all tokens of a parsed tokenizer.json, added tokens included."""
    vocabulary = tokenizer_json["model"]["vocab"]
    if isinstance(vocabulary, dict):
        tokens = {int(token_id): str(token) for token, token_id in vocabulary.items()}
    else:  # a unigram model: (token, score) in the order of ids
        tokens = {index: str(item[0]) for index, item in enumerate(vocabulary)}
    for added in tokenizer_json.get("added_tokens") or ():
        tokens[int(added["id"])] = str(added["content"])
    return tokens


def _fingerprint_of_directory(path: Path) -> str:
    file = path / "tokenizer.json"
    if not file.is_file():
        return _fingerprint_of_slow_tokenizer(path)
    try:
        return vocabulary_fingerprint(_fast_tokens(file).items())
    except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is not a tokenizer.json of the tokenizers library") from error


def _fast_tokens(file: Path) -> dict[int, str]:
    return huggingface_vocabulary(json.loads(file.read_text("utf-8")))


def _fingerprint_of_slow_tokenizer(path: Path) -> str:
    for name in _SLOW_VOCABULARIES:
        file = path / name
        if file.is_file():
            return sha256(b"".join(_named_contents(file))).hexdigest()
    raise ValueError(
        f"{path} has no tokenizer: there is no tokenizer.json and no vocabulary file; name one"
        " with --tokenizer"
    )


def _named_contents(file: Path) -> Iterator[bytes]:
    yield file.name.encode() + b"\0"
    yield file.read_bytes()
