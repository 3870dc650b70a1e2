from __future__ import annotations

import pytest
import torch
from torch import nn

from worker_svc.weight_storage import move_to_device, move_to_host, release_pinned_memory


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.arange(6.0).view(2, 3))
        self.head = self.embedding
        self.register_buffer("table", torch.tensor([1.0, 2.0]), persistent=False)


def test_weights_and_tables_come_back_to_who_holds_them() -> None:
    model = Tied()
    held = model.embedding
    addresses = held.data_ptr(), model.table.data_ptr()  # type: ignore[operator]
    move_to_host(model)
    assert held.data_ptr() != addresses[0]
    move_to_device(model, torch.device("cpu"))
    assert model.head is model.embedding is held
    assert held.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert model.table.tolist() == [1.0, 2.0]  # type: ignore[operator]


def test_pinned_memory_is_given_back_where_torch_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_host_emptyCache", raising=False)
    release_pinned_memory()
    calls: list[str] = []
    monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: calls.append("it"), raising=False)
    release_pinned_memory()
    assert calls == ["it"]
