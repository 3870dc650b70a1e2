"""Hugging Face tokenizer files to a tokenizer in use, as transformers would load them.

Reads tokenizer.json through the Rust library, and from the configuration files what that file
leaves open: special tokens, tokens added later, BOS and EOS, end-of-generation ids, chat templates.
Never imports transformers or torch. Knows nothing of where the files come from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer

from pagewire.kit.rust_panics import RustPanicError, RustPanicsRaised
from pagewire.model_source import TOKENIZER_FILE
from tokenizer_svc.gguf_tokenizer import bos_eos_processor
from tokenizer_svc.model_files import TokenizerFilesError
from tokenizer_svc.model_tokenizer import ModelTokenizer
from tokenizer_svc.vocabulary import read_vocabulary

_NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
DEFAULT_TEMPLATE = "default"


def load_tokenizer(files: Mapping[str, bytes], fingerprint: str) -> ModelTokenizer:
    """Build the tokenizer.

    Args:
        files: Contents by file name; tokenizer.json at least.
        fingerprint: The vocabulary's fingerprint, computed from the model itself.

    Raises:
        TokenizerFilesError: A file is broken; the message names it.
    """
    config = _json(files, "tokenizer_config.json")
    tokenizer = _rust_tokenizer(files[TOKENIZER_FILE])
    try:
        with RustPanicsRaised():
            return _build(tokenizer, files, config, fingerprint)
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        OverflowError,
        RustPanicError,
    ) as error:
        raise TokenizerFilesError(
            f"{TOKENIZER_FILE} or tokenizer_config.json has an unknown form: {error}"
        ) from error


def _build(
    tokenizer: Tokenizer, files: Mapping[str, bytes], config: Mapping[str, Any], fingerprint: str
) -> ModelTokenizer:
    special_tokens = _special_tokens(files, config)
    _add_missing_tokens(tokenizer, config, special_tokens)
    _set_bos_eos(tokenizer, config, special_tokens)
    vocabulary = read_vocabulary(tokenizer, _decoder(tokenizer))
    bos_token = special_tokens.get("bos_token")
    return ModelTokenizer(
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        fingerprint=fingerprint,
        special_tokens=special_tokens,
        bos_token_id=tokenizer.token_to_id(bos_token) if bos_token is not None else None,
        eos_token_ids=_eos_token_ids(files, tokenizer, special_tokens),
        chat_templates=_chat_templates(files, config),
        files=files,
    )


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    if name not in files:
        return {}
    try:
        content = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise TokenizerFilesError(f"{name} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerFilesError(f"{name} is not a JSON object")
    return content


def _rust_tokenizer(content: bytes) -> Tokenizer:
    try:
        with RustPanicsRaised():
            tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise TokenizerFilesError(f"{TOKENIZER_FILE} cannot be loaded: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _decoder(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """The decoder as tokenizer.json has it; parsing that file again would take far longer."""
    decoder = tokenizer.decoder
    return json.loads(decoder.__getstate__()) if decoder is not None else None


def _special_tokens(files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, str]:
    named = {**_json(files, "special_tokens_map.json"), **config}
    tokens = {name: _content(named.get(name)) for name in _NAMED_TOKENS}
    return {name: token for name, token in tokens.items() if token is not None}


def _content(token: object) -> str | None:
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _add_missing_tokens(
    tokenizer: Tokenizer,
    config: Mapping[str, Any],
    special_tokens: Mapping[str, str],
) -> None:
    """Tokens of the configuration that tokenizer.json does not have, in the order of their ids."""
    decoder = config.get("added_tokens_decoder") or {}
    added = [token for _, token in sorted(decoder.items(), key=lambda item: int(item[0]))]
    for token in added:
        if tokenizer.token_to_id(token["content"]) is None:
            flags = {name: token[name] for name in _ADDED_TOKEN_FLAGS if name in token}
            tokenizer.add_tokens([AddedToken(token["content"], **flags)])
    marked = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    extra_tokens = [_content(token) for token in extra] if isinstance(extra, list) else []
    for content in (*special_tokens.values(), *extra_tokens):
        if content is not None and content not in marked:
            tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False)])


_ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _set_bos_eos(
    tokenizer: Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """What the configuration says of BOS and EOS replaces what tokenizer.json does."""
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    ends = []
    for name in ("bos", "eos"):
        token = special_tokens.get(f"{name}_token")
        token_id = tokenizer.token_to_id(token) if token is not None else None
        wanted = bool(config.get(f"add_{name}_token"))
        ends.append((token, token_id) if wanted and token and token_id is not None else None)
    tokenizer.post_processor = bos_eos_processor(ends[0], ends[1])


def _eos_token_ids(
    files: Mapping[str, bytes], tokenizer: Tokenizer, special_tokens: Mapping[str, str]
) -> tuple[int, ...]:
    """The tokenizer's EOS first, then what the model's configuration adds."""
    own = special_tokens.get("eos_token")
    ids: list[object] = [tokenizer.token_to_id(own) if own is not None else None]
    for name in ("generation_config.json", "config.json"):
        value = _json(files, name).get("eos_token_id")
        ids += value if isinstance(value, list) else [value]
    valid = [token_id for token_id in ids if isinstance(token_id, int) and token_id >= 0]
    return tuple(dict.fromkeys(valid))


def _chat_templates(files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, str]:
    if "chat_template.jinja" in files:
        return {DEFAULT_TEMPLATE: files["chat_template.jinja"].decode("utf-8", "replace")}
    template = _json(files, "chat_template.json").get("chat_template", config.get("chat_template"))
    if isinstance(template, str):
        return {DEFAULT_TEMPLATE: template}
    if isinstance(template, Sequence):
        return {str(entry["name"]): str(entry["template"]) for entry in template}
    return {}
