"""How the heads, columns and vocabulary of a model are split over the ranks of one layer.

Owns the rule which sizes can be split and what to say of those that cannot. Knows no torch: it
gives numbers, from which layers take their shapes and `weight_slots` the parts of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker_svc.models.config import LlamaConfig, UnsupportedModelError
from worker_svc.parallel.layout import RankLayout


@dataclass(frozen=True, slots=True)
class Span:
    """A part of `total` things: `size` of them from `start` on."""

    start: int
    size: int
    total: int

    @property
    def is_whole(self) -> bool:
        return self.size == self.total

    def times(self, factor: int) -> Span:
        """The same part where each thing is `factor` things."""
        return Span(self.start * factor, self.size * factor, self.total * factor)


@dataclass(frozen=True, slots=True)
class ModelShards:
    """What one rank has of each layer."""

    heads: Span
    """Query heads."""
    kv_heads: Span
    """With fewer KV heads than ranks several ranks have the same one."""
    intermediate: Span
    """Columns of the MLP."""
    vocabulary: Span
    """Token ids; the last ranks may have fewer than the others, or none."""

    @classmethod
    def of(cls, config: LlamaConfig, layout: RankLayout) -> ModelShards:
        """The shards of `layout`.

        Raises:
            UnsupportedModelError: A size does not divide; the message names those that do.
        """
        check_layout(config, layout)
        size, rank = layout.tp_size, layout.tp_rank
        num_kv_heads = max(1, config.num_kv_heads // size)
        return cls(
            heads=_even(config.num_heads, size, rank),
            kv_heads=Span(rank * config.num_kv_heads // size, num_kv_heads, config.num_kv_heads),
            intermediate=_even(config.intermediate_size, size, rank),
            vocabulary=_uneven(config.vocab_size, size, rank),
        )


def check_layout(config: LlamaConfig, layout: RankLayout) -> None:
    """Refuse sizes that the model cannot be split by.

    Raises:
        UnsupportedModelError: The message names the sizes that do.
    """
    if not _divides(config, layout.tp_size):
        sizes = [size for size in range(1, config.num_heads + 1) if _divides(config, size)]
        raise UnsupportedModelError(
            f"tensor_parallel_size {layout.tp_size} does not divide it ({config.num_heads} query "
            f"heads, {config.num_kv_heads} KV heads, intermediate size "
            f"{config.intermediate_size}); --tensor-parallel-size may be {_one_of(sizes)}"
        )
    if layout.pp_size > config.num_layers:
        raise UnsupportedModelError(
            f"pipeline_parallel_size {layout.pp_size} is more than its {config.num_layers} layers; "
            f"--pipeline-parallel-size may be 1 to {config.num_layers}"
        )


def _divides(config: LlamaConfig, size: int) -> bool:
    """Whether `size` ranks get equal shards, of at least one KV head each."""
    num_kv_heads = config.num_kv_heads
    return (
        config.num_heads % size == 0
        and config.intermediate_size % size == 0
        and (num_kv_heads % size == 0 or size % num_kv_heads == 0)
    )


def _even(total: int, size: int, rank: int) -> Span:
    return Span(rank * total // size, total // size, total)


def _uneven(total: int, size: int, rank: int) -> Span:
    share = -(-total // size)
    start = min(rank * share, total)
    return Span(start, min(share, total - start), total)


def _one_of(sizes: list[int]) -> str:
    *others, last = map(str, sizes)
    return f"{', '.join(others)} or {last}" if others else last
