"""Any decoder of transformers that calls its attention interface, with paged KV through ours.

Owns the split of a model into trunk and head, so that the head runs for sampling rows alone, and
what makes a token's numbers depend on its position, never on the batch. Loading is in
`transformers_load`, the judgement of a model in `transformers_probe`. Imported only when chosen.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from worker_svc.attention.base import AttentionSpec, StepAttention
from worker_svc.device import CPU
from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.transformers_attention import (
    PROBE_NAME,
    SERVING_NAME,
    StepCalls,
    answered_by,
    attention_forward,
)
from worker_svc.models.transformers_experts import EXPERTS_NAME, experts_forward
from worker_svc.models.transformers_load import import_transformers, load_causal_model
from worker_svc.models.transformers_probe import (
    ProbeCalls,
    check_locality,
    probe_inputs,
    probe_layers,
    probe_mask,
)
from worker_svc.step import ProgressCallback
from worker_svc.weights.source import WeightSource


class TransformersModel(nn.Module):
    """A `PreTrainedModel` for causal language modelling, in two parts."""

    can_capture = False
    """Who knows what a family's code asks the device for."""

    def __init__(
        self, causal: Any, spec: AttentionSpec, output_class: type[Any], form: str
    ) -> None:
        super().__init__()
        self.attention_spec = spec
        self.form = form
        """All that decides its numbers beside its weights and their type."""
        self.trunk = causal.base_model
        self._held = _HeldHidden(output_class)
        setattr(causal, causal.base_model_prefix, self._held)
        self.head = causal

    @classmethod
    def load(
        cls,
        source: WeightSource,
        architecture: str,
        max_model_len: int,
        dtype: torch.dtype,
        progress: ProgressCallback,
        device: torch.device = CPU,
    ) -> TransformersModel:
        """Builds the model of `source`, loads its weights, and probes it.

        Raises:
            UnsupportedModelError: transformers has no such model, or it cannot be served; the
                message says why.
            WeightsError: The checkpoint does not fit the config.
        """
        _register(import_transformers())
        causal = load_causal_model(source, architecture, SERVING_NAME, dtype, progress, device)
        progress("probe_model", 0.0)
        with _refusing(architecture):
            has_long_factors = _fix_rotary(causal, max_model_len)
            form = _config_form(source.config, has_long_factors)
            return cls._probed(causal, max_model_len, form)

    @classmethod
    @torch.inference_mode()
    def _probed(cls, causal: Any, max_model_len: int, form: str) -> TransformersModel:
        limits = {"vocab_size": causal.config.vocab_size, "max_model_len": max_model_len}
        trunk = causal.base_model

        def hidden_states(token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            inputs = token_ids.to(causal.device), positions.to(causal.device)
            hidden: torch.Tensor = _run(trunk, *inputs).last_hidden_state[0]
            return hidden

        causal.set_attn_implementation(PROBE_NAME)
        num_layers = causal.config.num_hidden_layers
        spec = probe_layers(hidden_states, num_layers=num_layers, **limits)
        causal.set_attn_implementation(SERVING_NAME)
        check_locality(hidden_states, **limits)
        inputs = [tensor.to(causal.device) for tensor in probe_inputs(**limits)]
        with answered_by(ProbeCalls()):
            logits, output = _run(causal, *inputs).logits[0].float(), _run(trunk, *inputs)
        model = cls(causal, spec, type(output), form)
        if not torch.allclose(model.compute_logits(output.last_hidden_state[0]), logits):
            raise UnsupportedModelError("its logits are not a function of its last hidden states")
        return model

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention
    ) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size] of a flat batch, after the last norm.

        Args:
            token_ids: [num_tokens] int64.
            positions: [num_tokens] int64, each below max_model_len.
            attention: Attention of this step.
        """
        with answered_by(StepCalls(attention, self.attention_spec)):
            hidden: torch.Tensor = _run(self.trunk, token_ids, positions).last_hidden_state[0]
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of the rows that sample."""
        self._held.hidden = hidden[None]
        try:
            unused = torch.zeros(1, len(hidden), dtype=torch.int64, device=hidden.device)
            logits: torch.Tensor = self.head(input_ids=unused, use_cache=False).logits[0]
        finally:
            self._held.hidden = None
        return logits.float()


class _HeldHidden(nn.Module):
    """Stands where the trunk was, and gives the hidden states that it holds."""

    def __init__(self, output_class: type[Any]) -> None:
        super().__init__()
        self._output_class = output_class
        self.hidden: torch.Tensor | None = None

    @property
    def decoder(self) -> _HeldHidden:
        """OPT's head calls the trunk's inner part."""
        return self

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._output_class(last_hidden_state=self.hidden)


def _config_form(fields: Mapping[str, Any], has_long_factors: bool) -> str:
    version = import_transformers().__version__
    form = f"transformers {version}\0{json.dumps(dict(fields), sort_keys=True, default=str)}"
    return f"{form}\0long factors" if has_long_factors else form


def _run(module: Any, token_ids: torch.Tensor, positions: torch.Tensor) -> Any:
    return module(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)


def _register(transformers: Any) -> None:
    for name in (SERVING_NAME, PROBE_NAME):
        transformers.AttentionInterface.register(name, attention_forward)
    transformers.AttentionMaskInterface.register(PROBE_NAME, probe_mask)
    experts = importlib.import_module("transformers.integrations.moe")
    experts.ALL_EXPERTS_FUNCTIONS.register(EXPERTS_NAME, experts_forward)


@contextmanager
def _refusing(architecture: str) -> Iterator[None]:
    """Any failure of the model inside is a refusal that names it."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        problem = (
            str(error)
            if isinstance(error, UnsupportedModelError)
            else f"its forward pass fails ({type(error).__name__}); the worker's log says why"
        )
        raise UnsupportedModelError(
            f"architecture {architecture} cannot be served by the Transformers backend: {problem}"
        ) from error


def _fix_rotary(causal: Any, max_model_len: int) -> bool:
    """Rotations that would depend on the longest sequence of a batch depend on it no more.

    `longrope` takes its factors by max_model_len, as our own module does; `dynamic` is refused.

    Returns:
        Whether `longrope` has its long factors now.
    """
    has_long_factors = False
    for module in causal.modules():
        kind = getattr(module, "rope_type", "default")
        kinds = kind.values() if isinstance(kind, Mapping) else (kind,)
        if any("dynamic" in str(one) for one in kinds):
            raise UnsupportedModelError("its rope_type is dynamic")
        if "longrope" in kinds:
            has_long_factors |= _fix_longrope(module, kind, max_model_len)
    return has_long_factors


def _fix_longrope(module: Any, kind: object, max_model_len: int) -> bool:
    if not isinstance(kind, str):
        raise UnsupportedModelError("its rope_type is longrope in some layers only")
    original = module.config.rope_parameters["original_max_position_embeddings"]
    has_long_factors = bool(max_model_len > original)
    if has_long_factors:
        frequencies = importlib.import_module("transformers.modeling_rope_utils")
        init = frequencies.ROPE_INIT_FUNCTIONS[kind]
        inv_freq, _ = init(module.config, module.inv_freq.device, seq_len=max_model_len)
        module.inv_freq.copy_(inv_freq)
    module.rope_type = "default"  # The kinds that are not looked at again in each forward pass.
    return has_long_factors
