"""A worker on the simulated device that dies of one token: `python -m tests.chaos.poisoned_worker`.

Stands for a request that crashes a kernel: whatever step has it in a prompt takes the process down.
"""

from __future__ import annotations

import os
import signal
import sys

from worker_svc.__main__ import main
from worker_svc.grammar_masks import MaskSource, no_masks
from worker_svc.sim import runner
from worker_svc.step import ModelRunnerOutput, SchedulerOutput

POISON = 31_337


class PoisonedRunner(runner.SimRunner):
    """Dies in a step that begins a prompt with `POISON`."""

    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        if any(POISON in request.prompt_token_ids for request in scheduler_output.new_requests):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(scheduler_output, masks)


if __name__ == "__main__":
    runner.SimRunner = PoisonedRunner  # type: ignore[misc]
    sys.exit(main())
