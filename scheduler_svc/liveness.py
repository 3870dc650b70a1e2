"""The liveness guard: notices that nothing moves though something could.

A scheduler that has nothing running, may admit and yet plans empty steps has a bug or leaks blocks.
The guard counts such steps; it neither knows why nor repairs anything. `engine_core` shows it every
step that it plans.
"""

from __future__ import annotations

MAX_STEPS_WITHOUT_PROGRESS = 16


class LivenessGuard:
    """Counts steps without progress in a row."""

    def __init__(self, max_steps: int = MAX_STEPS_WITHOUT_PROGRESS) -> None:
        self._max_steps = max_steps
        self._num_steps = 0
        self.num_stalls = 0
        """How often the limit was reached; grows forever."""

    @property
    def is_stalled(self) -> bool:
        """Whether the limit was reached and nothing has moved since."""
        return self._num_steps >= self._max_steps

    def observe(self, *, could_progress: bool, has_progress: bool) -> bool:
        """Count one planned step.

        Args:
            could_progress: Nothing ran or was under way, something waited that could be admitted.
            has_progress: The step computes something.

        Returns:
            Whether the limit is reached by this very step; once a stall.
        """
        if has_progress or not could_progress:
            self._num_steps = 0
            return False
        self._num_steps += 1
        if self._num_steps != self._max_steps:
            return False
        self.num_stalls += 1
        return True
