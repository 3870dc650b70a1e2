"""The files that make up a model's tokenizer, from wherever `--model` or `--tokenizer` points.

Gives the Hugging Face files by name: read from a directory, or converted from a GGUF file and
cached. A directory without a tokenizer.json has a slow tokenizer, which transformers (imported only
then) converts. Knows nothing of what the files mean.
"""

from __future__ import annotations

from pathlib import Path

from pagewire.model_source import TOKENIZER_FILE, ModelFormat, ModelSource
from tokenizer_svc.conversion_cache import Files, cached, entry_path
from tokenizer_svc.gguf_tokenizer import CONVERTER_VERSION, convert_gguf

_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
)
# Files that are not read whole into memory by mistake: the largest tokenizer.json are about 35 MB.
_MAX_FILE_BYTES = 256 << 20


class TokenizerFilesError(ValueError):
    """The tokenizer's files cannot be used; the message says what to change."""


def read_files(source: ModelSource, cache_directory: Path | None = None) -> Files:
    """Hugging Face files of a model's tokenizer, by name.

    Args:
        source: Where the model is.
        cache_directory: Where converted tokenizers are kept; default: see `conversion_cache`.

    Raises:
        TokenizerFilesError: There is no tokenizer, or it cannot be converted.
        GgufError: The GGUF file is broken or has a tokenizer that we don't know.
    """
    if source.format is ModelFormat.GGUF:
        entry = entry_path(source.path, CONVERTER_VERSION, cache_directory)
        return cached(entry, lambda: convert_gguf(source.path))
    files = {name: _read(source.path / name) for name in _FILES if (source.path / name).is_file()}
    if TOKENIZER_FILE not in files:
        files[TOKENIZER_FILE] = convert_slow_tokenizer(source.path)
    return files


def convert_slow_tokenizer(path: Path) -> bytes:
    """The tokenizer.json of a directory that has only a slow tokenizer's files.

    Raises:
        TokenizerFilesError: Transformers is not installed, or cannot convert it either.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise TokenizerFilesError(
            f"{path} has no {TOKENIZER_FILE}; to convert its slow tokenizer, "
            "run `pip install transformers`, or give a tokenizer that has one with --tokenizer"
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
        return str(tokenizer.backend_tokenizer.to_str()).encode()
    except Exception as error:  # transformers raises whatever a model's own code raises
        raise TokenizerFilesError(
            f"{path} has no {TOKENIZER_FILE}, and transformers cannot make one "
            f"({type(error).__name__}); give a tokenizer that has one with --tokenizer"
        ) from error


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > _MAX_FILE_BYTES:
        raise TokenizerFilesError(f"{path} has {size} bytes; a tokenizer's file has far fewer")
    return path.read_bytes()
