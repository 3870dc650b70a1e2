"""What rows cost: greedy ones that ask for no logprobs need no more than their largest logit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.worker_svc.sampler.factories import make_batch, make_row
from worker_svc.sampler.device_sampler import DeviceSampler
from worker_svc.sampler.sampler import Sampler

VOCAB_SIZE = 4096
COSTLY = {"exp", "_softmax", "_log_softmax", "cumsum", "sort", "topk", "logsumexp", "div", "clone"}
"""By PyTorch's names, without the underscore of what is done in place."""

BOTH = pytest.mark.parametrize("kind", [Sampler, DeviceSampler])


class Operations(TorchDispatchMode):
    """Counts the numbers that each of PyTorch's operations is given."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[str, int] = defaultdict(int)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        name = name if name.startswith("_") else name.removesuffix("_")
        self.numbers[name] += sum(arg.numel() for arg in args if isinstance(arg, torch.Tensor))
        return func(*args, **(kwargs or {}))

    def costly(self) -> dict[str, int]:
        """Of whole rows, not of a few flags."""
        return {
            name: numbers
            for name, numbers in self.numbers.items()
            if name in COSTLY and numbers >= VOCAB_SIZE
        }


def operations_of(kind: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    sampler = kind(eos_token_ids=(2,))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=generator)
    expected = logits.argmax(-1).tolist()
    batch = make_batch([make_row(seed=seed, **params) for seed, params in enumerate(rows)])
    with Operations() as operations:
        output = sampler.sample(logits, batch)
    for row, token_id, largest in zip(rows, output.token_ids.tolist(), expected, strict=True):
        assert row["temperature"] > 0 or token_id == largest
    return operations.costly()


@BOTH
def test_greedy_rows_need_their_largest_logit_alone(kind: Any) -> None:
    assert operations_of(kind, [{"temperature": 0.0}] * 5) == {}


@BOTH
def test_greedy_rows_beside_others_cost_nothing_more(kind: Any) -> None:
    drawn = {"temperature": 0.8}
    alone = operations_of(kind, [drawn])
    assert alone["exp"] > 0
    assert operations_of(kind, [{"temperature": 0.0}, drawn, {"temperature": 0.0}]) == alone


@BOTH
def test_logprobs_are_computed_for_the_rows_that_ask(kind: Any) -> None:
    greedy, asking = {"temperature": 0.0}, {"temperature": 0.0, "logprobs": 3}
    assert operations_of(kind, [greedy, asking, greedy])["_log_softmax"] == VOCAB_SIZE
