"""Torch without what describes tensors without data, and with it once that is wanted."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from worker_svc import torch_import

PROGRAM = """
import sys
from worker_svc.torch_import import complete_torch, import_torch

import_torch()
import torch

print("torch._refs" in sys.modules, torch.arange(3.0).softmax(0).argmax().item())
tensor = torch.empty(4, 4, device="meta")
try:
    torch.fft.rfft(tensor)
except NotImplementedError:
    print("not described")
complete_torch()
print(tuple(torch.fft.rfft(tensor).shape))
"""


def test_what_describes_tensors_without_data_comes_when_it_is_wanted() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False 2", "not described", "(4, 3)"], done.stderr


def test_a_build_without_distributed_is_complete_without_its_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported = []
    import_module = importlib.import_module

    def import_and_note(name: str) -> ModuleType:
        imported.append(name)
        return import_module(name)

    monkeypatch.setattr("torch.distributed.is_available", lambda: False)
    monkeypatch.setattr(importlib, "import_module", import_and_note)
    torch_import.complete_torch()
    assert imported == ["torch.distributed", "torch._meta_registrations"]


def test_an_untested_version_is_imported_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_import, "version", lambda _: "9.9.9")
    assert not torch_import._is_tested()
    monkeypatch.setattr(torch_import, "version", lambda _: "2.13.1+cpu")
    assert torch_import._is_tested()
