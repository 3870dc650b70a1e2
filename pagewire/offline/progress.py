"""The progress bar of `LLM`: tqdm's, where tqdm is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pagewire.client.types import RequestOutput

Progress = Callable[[RequestOutput | None], None]
"""Called once a prompt; None: it failed."""


@contextmanager
def progress_bar(num_prompts: int, use_tqdm: bool | Callable[..., Any]) -> Iterator[Progress]:
    """Give what to call for every prompt that ended.

    Args:
        num_prompts: All of them.
        use_tqdm: False: show nothing; or a class to use in place of tqdm's.
    """
    bar_class = _tqdm() if use_tqdm is True else use_tqdm
    if not bar_class:
        yield lambda _: None
        return
    # Three parts a second are enough for people, and cost nothing.
    with bar_class(
        total=num_prompts, desc="Processed prompts", dynamic_ncols=True, mininterval=0.3
    ) as bar:
        started = _Totals()

        def advance(output: RequestOutput | None) -> None:
            if output is not None:
                bar.set_postfix_str(started.add(output, bar), refresh=False)
            bar.update(1)

        yield advance


class _Totals:
    """Tokens so far, as a text."""

    def __init__(self) -> None:
        self._prompt_tokens = self._output_tokens = 0

    def add(self, output: RequestOutput, bar: Any) -> str:
        self._prompt_tokens += output.usage.prompt_tokens
        self._output_tokens += output.usage.completion_tokens
        elapsed_s = bar.format_dict["elapsed"] or 1e-9
        return (
            f"input: {self._prompt_tokens / elapsed_s:.0f} toks/s,"
            f" output: {self._output_tokens / elapsed_s:.0f} toks/s"
        )


def _tqdm() -> Callable[..., Any] | None:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm  # type: ignore[no-any-return]
