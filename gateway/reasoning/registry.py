"""Styles of reasoning by the names that `--reasoning-parser` takes."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.reasoning.think_tags import Begin

NONE = "none"
"""Outputs are not split."""

# How an output begins where the prompt does not tell.
REASONING_STYLES: Mapping[str, Begin] = {
    # Always reasons; older templates leave the opening tag to nobody.
    "deepseek_r1": Begin.REASONING,
    # Opens the tag itself, or has it opened or closed by the template.
    "qwen3": Begin.EITHER,
}
