"""Architecture name to model class, imported when it is asked for.

Adding a model is one module and one row. Knows nothing of weights or devices.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worker_svc.models.config import UnsupportedModelError

if TYPE_CHECKING:
    from worker_svc.models.llama import LlamaForCausalLM

_MODELS = {
    "LlamaForCausalLM": ("worker_svc.models.llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("worker_svc.models.llama", "LlamaForCausalLM"),
    "Qwen2ForCausalLM": ("worker_svc.models.llama", "LlamaForCausalLM"),
    "Qwen3ForCausalLM": ("worker_svc.models.llama", "LlamaForCausalLM"),
}


def select_architecture(architectures: Sequence[str]) -> str:
    """The first of a config's `architectures` that is implemented.

    Raises:
        UnsupportedModelError: None of them is; the message lists those that are.
    """
    for name in architectures:
        if name in _MODELS:
            return name
    raise UnsupportedModelError(
        f"architectures {list(architectures)} are not implemented; these are: {sorted(_MODELS)}"
    )


def model_class(architecture: str) -> type[LlamaForCausalLM]:
    """Imports the module of `architecture` and gives its class."""
    module, name = _MODELS[architecture]
    cls: type[LlamaForCausalLM] = getattr(importlib.import_module(module), name)
    return cls
