"""`import pagewire`: cheap, and every public name is there."""

from __future__ import annotations

import subprocess
import sys

import pagewire


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, pagewire; heavy = {'grpc', 'torch', 'google', 'asyncio', 'numpy', 'tqdm'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


def test_every_public_name_is_found_and_listed():
    for name in pagewire.__all__:
        assert getattr(pagewire, name) is not None
    assert set(pagewire.__all__) <= set(dir(pagewire))
    assert not hasattr(pagewire, "Klient")
