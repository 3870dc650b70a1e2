"""What `LLM` raises when some prompts failed."""

from __future__ import annotations

from collections.abc import Mapping

from pagewire.client.types import RequestOutput
from pagewire.kit.errors import PagewireError


class PromptsFailedError(PagewireError):
    """Some prompts of a call failed; all others were finished first.

    Attributes:
        errors: By the prompt's place in the call: why it failed.
        outputs: One a prompt, in their order; None for those that failed.
    """

    default_reason = "PROMPTS_FAILED"

    def __init__(
        self, errors: Mapping[int, PagewireError], outputs: list[RequestOutput | None]
    ) -> None:
        first = min(errors)
        which = f"prompt {first}" if len(errors) == 1 else f"the first of them prompt {first}"
        super().__init__(
            f"{len(errors)} of {len(outputs)} prompts failed, {which}: {errors[first].message}",
            metadata={"num_failed": str(len(errors))},
        )
        self.errors = dict(errors)
        self.outputs = outputs
