"""Where a rank stands in its replica: which shard of each layer, which layers.

Pure arithmetic; knows no torch and no process. Ranks are numbered stage after stage: rank =
stage * tp_size + tp_rank.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankLayout:
    """One rank's place among tp_size * pp_size."""

    rank: int = 0
    tp_size: int = 1
    """Ranks that share each layer."""
    pp_size: int = 1
    """Stages, each with a part of the layers."""

    def __post_init__(self) -> None:
        if self.tp_size < 1 or self.pp_size < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} of {self.tp_size} x {self.pp_size}")

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tp_size

    @property
    def stage(self) -> int:
        return self.rank // self.tp_size

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.pp_size - 1

    def layers(self, num_layers: int) -> range:
        """Indices of this stage's layers, of `num_layers` in the model: as even as it goes."""
        start = self.stage * num_layers // self.pp_size
        return range(start, (self.stage + 1) * num_layers // self.pp_size)


ONE_RANK = RankLayout()
