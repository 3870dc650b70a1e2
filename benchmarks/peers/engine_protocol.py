"""How a library without a server is asked: lines of JSON on its standard input and output.

Its program prints `{"ready": true}` once, and answers each question `{"prompts": [[ids]],
"max_tokens": n}` with `{"seconds": x}`. It is used from environments without pagewire, so this
module imports nothing of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def answer_all(generate: Callable[[list[list[int]], int], float]) -> None:
    """Say that the library is ready, and answer questions until there are no more.

    Args:
        generate: Prompts and number of output tokens to seconds.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # what the library prints is no answer

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    say({"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        say({"seconds": generate(question["prompts"], question["max_tokens"])})
