"""The first import of torch, without the part of it that most models never use.

A third of that import describes in Python what operators would make of tensors without data
(PyTorch's `meta` device). Models that Transformers builds need it, and so does what traces or
compiles; a model on the CPU kernels does not. `complete_torch` brings it when it is wanted. Imports
no torch at its top; called on the device thread.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

_OF_DISTRIBUTED = "torch.distributed._meta_registrations"
"""Of builds that have it."""
_DEFERRED = ("torch._meta_registrations", _OF_DISTRIBUTED)
# In others torch itself may want what is in them.
_TESTED_VERSIONS = ("2.13.",)


def import_torch() -> None:
    """Import torch; of a version that was not tested so, all of it. Idempotent."""
    if "torch" in sys.modules or not _is_tested():
        importlib.import_module("torch")
        return
    for name in _DEFERRED:
        sys.modules[name] = ModuleType(name)
    try:
        importlib.import_module("torch")
    finally:
        # Whoever imports them from now on gets them as they are.
        for name in _DEFERRED:
            del sys.modules[name]


def complete_torch() -> None:
    """Import what was left out. Idempotent."""
    has_distributed = importlib.import_module("torch.distributed").is_available()
    for name in _DEFERRED:
        if has_distributed or name != _OF_DISTRIBUTED:
            importlib.import_module(name)


def _is_tested() -> bool:
    try:
        return version("torch").startswith(_TESTED_VERSIONS)
    except PackageNotFoundError:
        return False  # its own import says what is wrong
