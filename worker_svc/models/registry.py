"""Architecture name to whoever implements it: a module of our own, or the Transformers backend.

Owns the rows of what is served and tested, and of what is known not to work, with the reason.
Adding a model is one row, and one module where it is our own. Knows nothing of weights or devices,
and imports no torch: a module is imported when its class is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from worker_svc.models.config import UnsupportedModelError

if TYPE_CHECKING:
    from pagewire.engine_config import ModelImpl
    from worker_svc.models.llama import LlamaForCausalLM

_LLAMA = ("worker_svc.models.llama", "LlamaForCausalLM")
_DECODER_SUFFIXES = ("ForCausalLM", "LMHeadModel")


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One architecture that is served and tested."""

    family: str
    """For people."""
    own: tuple[str, str] | None = None
    """Module and class of our own; None: the Transformers backend alone."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """Who runs a model."""

    architecture: str
    is_own: bool
    """Our own module, else the Transformers backend."""
    is_tested: bool = True


MODELS: Mapping[str, ModelRow] = MappingProxyType(
    {
        "LlamaForCausalLM": ModelRow("Llama, SmolLM, SmolLM2", _LLAMA),
        "MistralForCausalLM": ModelRow("Mistral", _LLAMA),
        "Qwen2ForCausalLM": ModelRow("Qwen2, Qwen2.5", _LLAMA),
        "Qwen3ForCausalLM": ModelRow("Qwen3", _LLAMA),
        "Cohere2ForCausalLM": ModelRow("Command R7B, Command A"),
        "GPT2LMHeadModel": ModelRow("GPT-2"),
        "GPTJForCausalLM": ModelRow("GPT-J"),
        "GPTNeoXForCausalLM": ModelRow("GPT-NeoX, Pythia"),
        "Gemma2ForCausalLM": ModelRow("Gemma 2"),
        "Gemma3ForCausalLM": ModelRow("Gemma 3 (text)"),
        "GraniteForCausalLM": ModelRow("Granite 3"),
        "MixtralForCausalLM": ModelRow("Mixtral"),
        "NemotronForCausalLM": ModelRow("Nemotron, Minitron"),
        "OPTForCausalLM": ModelRow("OPT"),
        "OlmoForCausalLM": ModelRow("OLMo"),
        "Olmo2ForCausalLM": ModelRow("OLMo 2"),
        "Phi3ForCausalLM": ModelRow("Phi-3, Phi-4"),
        "PhiForCausalLM": ModelRow("Phi-1, Phi-2"),
        "Qwen3MoeForCausalLM": ModelRow("Qwen3-MoE"),
        "SmolLM3ForCausalLM": ModelRow("SmolLM3"),
        "StableLmForCausalLM": ModelRow("StableLM"),
        "Starcoder2ForCausalLM": ModelRow("StarCoder2"),
    }
)

_OWN_ATTENTION = "its attention does not go through transformers' attention interface"
_STATE = "it keeps a recurrent state beside the KV cache"
REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "BloomForCausalLM": _OWN_ATTENTION,
        "DeepseekV2ForCausalLM": "its keys and values have different sizes",
        "DeepseekV3ForCausalLM": "its keys and values have different sizes",
        "FalconForCausalLM": _OWN_ATTENTION,
        "FalconH1ForCausalLM": _STATE,
        "FalconMambaForCausalLM": _STATE,
        "GPTNeoForCausalLM": _OWN_ATTENTION,
        "GptOssForCausalLM": "its attention has sinks (s_aux)",
        "JambaForCausalLM": _STATE,
        "Lfm2ForCausalLM": _STATE,
        "MambaForCausalLM": _STATE,
        "Mamba2ForCausalLM": _STATE,
        "MptForCausalLM": _OWN_ATTENTION,
        "XGLMForCausalLM": _OWN_ATTENTION,
    }
)


def select_implementation(
    architectures: Sequence[str], model_impl: ModelImpl = "auto"
) -> Implementation:
    """Who runs a model whose config.json has these `architectures`.

    A decoder without a row goes to the Transformers backend, which judges it by a probe.

    Raises:
        UnsupportedModelError: Nobody does; the message says why, or lists what is served.
    """
    for name in architectures:
        if name in MODELS:
            return _listed(name, MODELS[name], model_impl)
        if name in REFUSED:
            raise UnsupportedModelError(f"architecture {name} is not supported: {REFUSED[name]}")
    decoders = [name for name in architectures if name.endswith(_DECODER_SUFFIXES)]
    if decoders and model_impl != "pagewire":
        return Implementation(decoders[0], is_own=False, is_tested=False)
    served = sorted(name for name in MODELS if model_impl != "pagewire" or MODELS[name].own)
    raise UnsupportedModelError(
        f"architectures {list(architectures)} are not implemented; these are: {', '.join(served)}"
    )


def model_class(architecture: str) -> type[LlamaForCausalLM]:
    """Imports our own module of `architecture`, which has one, and gives its class."""
    own = MODELS[architecture].own
    if own is None:
        raise LookupError(f"{architecture} has no module of our own")
    module, name = own
    cls: type[LlamaForCausalLM] = getattr(importlib.import_module(module), name)
    return cls


def _listed(name: str, row: ModelRow, model_impl: ModelImpl) -> Implementation:
    if model_impl == "pagewire" and row.own is None:
        raise UnsupportedModelError(
            f"architecture {name} has no module of our own: use --model-impl auto"
        )
    return Implementation(name, is_own=row.own is not None and model_impl != "transformers")
