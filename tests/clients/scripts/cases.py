"""Runs the cases of a client in its own environment, and prints what each saw as JSON.

It needs nothing but Python, as the environments have the client and no part of this project.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

MODEL = os.environ["CLIENT_MODEL"]
BASE_URL = os.environ["CLIENT_BASE_URL"]
API_KEY = os.environ["CLIENT_API_KEY"]

WEATHER_QUESTION = "What is the weather in Paris?"
CAPITAL_QUESTION = "What is the capital of France?"


def run(*cases: Callable[[], Any]) -> None:
    """Run the cases one after another; print {name: {"saw": ...} or {"error": traceback}}."""
    found = {}
    # What a client prints must not stand between the lines of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        for case in cases:
            try:
                found[case.__name__] = {"saw": case()}
            except Exception:
                found[case.__name__] = {"error": traceback.format_exc()}
    print(json.dumps(found))
