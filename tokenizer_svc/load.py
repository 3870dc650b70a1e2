"""From the settings to an engine that is ready: finds the model, loads its tokenizer and template.

Blocking; the composition root calls it in a thread. Knows nothing of servers.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

from jinja2 import TemplateSyntaxError

from pagewire.kit.errors import FailedPreconditionError
from pagewire.kit.logs import get_logger
from pagewire.model_source import ModelSource, resolve_model, resolve_tokenizer
from pagewire.tokenizer_fingerprint import fingerprint_of_model
from tokenizer_svc.chat_template import DEFAULT_TEMPLATE, ChatTemplates, template_facts
from tokenizer_svc.config import TokenizerServiceConfig
from tokenizer_svc.hf_tokenizer import load_tokenizer
from tokenizer_svc.model_files import read_files
from tokenizer_svc.model_tokenizer import ModelTokenizer

_log = get_logger(__name__)


def load_model(config: TokenizerServiceConfig) -> tuple[ModelTokenizer, ChatTemplates]:
    """Load what the settings name.

    Raises:
        FailedPreconditionError: The model, its tokenizer or the template cannot be used; the
            message says what to change.
    """
    try:
        source = _source(config)
        fingerprint = fingerprint_of_model(source.path)  # at once, where there is no vocabulary
        cache = Path(config.cache_dir).expanduser() if config.cache_dir is not None else None
        files = read_files(source, cache)
        model = load_tokenizer(files, fingerprint)
    except (ValueError, OSError) as error:
        raise FailedPreconditionError(str(error), reason="TOKENIZER_UNUSABLE") from error
    templates = _templates(config, model)
    _give_back_memory()
    _log.info(
        "tokenizer loaded",
        path=str(source.path),
        vocab_size=model.vocabulary.size,
        fingerprint=model.fingerprint,
        chat_template=bool(templates.templates),
    )
    return model, templates


def _source(config: TokenizerServiceConfig) -> ModelSource:
    if config.tokenizer is not None:
        return resolve_tokenizer(config.tokenizer, config.revision)
    return resolve_model(config.model, config.revision)


def _give_back_memory() -> None:
    # Loading frees about as much as it keeps, and glibc holds on to it: a fifth of the process.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _templates(config: TokenizerServiceConfig, model: ModelTokenizer) -> ChatTemplates:
    templates = dict(model.chat_templates)
    if config.chat_template is not None:
        try:
            text = Path(config.chat_template).expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FailedPreconditionError(f"--chat-template cannot be read: {error}") from error
        templates = {DEFAULT_TEMPLATE: text}
    for name, text in list(templates.items()):
        try:
            template_facts(text)
        except TemplateSyntaxError as error:
            if config.chat_template is not None:
                raise FailedPreconditionError(
                    f"--chat-template is not valid Jinja: {error.message} (line {error.lineno})"
                ) from error
            # Text in, text out still works without it.
            _log.warning("the model's chat template is not valid Jinja", name=name)
            del templates[name]
    return ChatTemplates(templates, model.special_tokens)
