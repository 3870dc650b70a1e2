"""Styles of reasoning by the names that `--reasoning-parser` takes."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.reasoning.think_tags import Begin, ThinkTagSplitter, begin_of

NONE = "none"
"""Outputs are not split."""

# How an output begins where the prompt does not tell.
REASONING_STYLES: Mapping[str, Begin] = {
    # Always reasons; older templates leave the opening tag to nobody.
    "deepseek_r1": Begin.REASONING,
    # Opens the tag itself, or has it opened or closed by the template.
    "qwen3": Begin.EITHER,
}


def make_splitter(style: str, prompt: str) -> ThinkTagSplitter:
    """Return the splitter for an output.

    Args:
        style: One of `REASONING_STYLES`.
        prompt: The text that the output continues, or its end.
    """
    return ThinkTagSplitter(begin_of(prompt, REASONING_STYLES[style]))
