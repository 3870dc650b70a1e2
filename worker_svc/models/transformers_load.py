"""A transformers model with the weights of a checkpoint, and nothing twice in memory.

Owns the way in: config fields to a config object, the class of an architecture, tensors handed over
one at a time, and every error of it in plain words. Code of a model's own repository is never run:
a class comes from the transformers package or not at all. Called by the Transformers backend.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping
from types import EllipsisType
from typing import Any

import torch

from worker_svc.models.config import UnsupportedModelError
from worker_svc.models.transformers_experts import EXPERTS_NAME
from worker_svc.step import ProgressCallback
from worker_svc.weights.source import WeightsError, WeightSource

_NAMES_SHOWN = 5


def import_transformers() -> Any:
    """The package; seconds, the first time.

    Raises:
        UnsupportedModelError: It is not installed.
    """
    # Tensors are read where progress and cancellation are: on this thread, in order.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise UnsupportedModelError(
            "this architecture needs the package transformers: "
            "install pagewire[worker-transformers] on the worker"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def load_causal_model(
    source: WeightSource,
    architecture: str,
    attention_name: str,
    dtype: torch.dtype,
    progress: ProgressCallback,
    device: torch.device,
) -> Any:
    """A `PreTrainedModel` in evaluation mode, tied weights tied.

    The model is built without memory of its own (transformers' meta device); each tensor is then
    read, converted and put in its place.

    Args:
        source: The checkpoint.
        architecture: One of its `architectures`.
        attention_name: The registered attention function that layers are to call.
        dtype: Type of the weights.
        progress: Called with ("load_weights", fraction of bytes).
        device: Where the weights go, one tensor at a time.

    Raises:
        UnsupportedModelError: transformers has no such model, or its config is damaged.
        WeightsError: A tensor is missing, surplus, or of another shape.
    """
    transformers = import_transformers()
    model_class = _find_class(transformers, architecture, source.config)
    config = _make_config(transformers, source.config)
    reader, placement = _TensorReader(source, dtype, progress), _placement(device)
    progress("load_weights", 0.0)
    try:
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict={name: _LazyTensor(reader, name) for name in source.names()},
            dtype=dtype,
            attn_implementation=attention_name,
            experts_implementation=EXPERTS_NAME,
            ignore_mismatched_sizes=True,  # They are in the report.
            output_loading_info=True,
            **placement,
        )
    except Exception as error:
        if reader.error is not None:
            raise reader.error from None
        raise UnsupportedModelError(
            f"transformers cannot build {architecture} from this config and checkpoint "
            f"({type(error).__name__}); the worker's log says why"
        ) from error
    reader.release()
    _check_report(report, source)
    progress("load_weights", 1.0)
    return model.eval().requires_grad_(False)


def _placement(device: torch.device) -> dict[str, Any]:
    """What tells transformers where a model goes; on a CPU it asks for nothing."""
    if device.type == "cpu":
        return {}
    if importlib.util.find_spec("accelerate") is None:
        raise UnsupportedModelError(
            "this architecture needs the package accelerate on a CUDA device: "
            "install pagewire[worker-transformers] on the worker"
        )
    return {"device_map": {"": device}}


class _TensorReader:
    """Reads tensors for transformers, and keeps the first error, which it would wrap or lose."""

    def __init__(
        self, source: WeightSource, dtype: torch.dtype, progress: ProgressCallback
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._progress = progress
        self._sizes = {name: len(source.stored_bytes(name)) for name in source.names()}
        self._total = max(1, sum(self._sizes.values()))
        self._read = 0
        self._lent: str | None = None
        self.error: Exception | None = None

    def read(self, name: str) -> torch.Tensor:
        try:
            self.release()
            tensor = self._source.tensor(name)
            self._lent = name
            if not tensor.is_floating_point():
                kind = str(tensor.dtype).removeprefix("torch.")
                raise WeightsError(
                    f"{self._source.location(name)}: tensor {name} has type {kind}, no weights"
                )
            # Another type is converted, which copies; the same one must not stay on the file.
            tensor = tensor.clone() if tensor.dtype == self._dtype else tensor
            self._read += self._sizes[name]
            self._progress("load_weights", self._read / self._total)
        except Exception as error:
            self.error = self.error or error
            raise
        return tensor

    def release(self) -> None:
        """Gives the file's pages of the last tensor back: it is in its place by now."""
        if self._lent is not None:
            self._source.release(self._lent)
            self._lent = None


class _LazyTensor:
    """Stands for a tensor until transformers slices it, as a safetensors slice does."""

    def __init__(self, reader: _TensorReader, name: str) -> None:
        self._reader = reader
        self._name = name

    def __getitem__(self, index: EllipsisType) -> torch.Tensor:
        return self._reader.read(self._name)[index]


def _find_class(transformers: Any, architecture: str, fields: Mapping[str, Any]) -> Any:
    auto = importlib.import_module("transformers.models.auto.modeling_auto")
    known = set(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if architecture in known and fields.get("model_type") in transformers.CONFIG_MAPPING:
        return getattr(transformers, architecture)
    if fields.get("auto_map"):
        raise UnsupportedModelError(
            f"architecture {architecture} needs code from the model's own repository (auto_map), "
            "which is never run"
        )
    raise UnsupportedModelError(
        f"architecture {architecture} with model_type {fields.get('model_type')!r} is no decoder "
        f"that transformers {transformers.__version__} knows"
    )


def _make_config(transformers: Any, fields: Mapping[str, Any]) -> Any:
    config_class = transformers.CONFIG_MAPPING[fields["model_type"]]
    ours = {name: value for name, value in fields.items() if name not in ("auto_map", "dtype")}
    try:
        return config_class.from_dict(ours)
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise UnsupportedModelError(
            f"model config: {reason[0] if reason else type(error).__name__}"
        ) from error


def _check_report(report: Mapping[str, Any], source: WeightSource) -> None:
    for name, found, wanted in sorted(report["mismatched_keys"]):
        raise WeightsError(
            f"{source.location()}: tensor {name} has shape {list(found)}, the model's config "
            f"wants {list(wanted)}"
        )
    problems = [
        f"{kind}: {', '.join(sorted(names)[:_NAMES_SHOWN])}"
        + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")
        for kind, names in (
            ("missing", report["missing_keys"]),
            ("surplus", report["unexpected_keys"]),
        )
        if names
    ]
    if problems:
        raise WeightsError(
            f"{source.location()}: checkpoint and model config do not fit; {'; '.join(problems)}"
        )
