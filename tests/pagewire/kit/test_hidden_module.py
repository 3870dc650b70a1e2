from __future__ import annotations

import subprocess
import sys

import pytest

from pagewire.kit.hidden_module import hidden_module


def test_a_hidden_module_is_not_there_and_comes_back(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with hidden_module("colorsys"), pytest.raises(ModuleNotFoundError):
        import colorsys
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)


def test_what_was_imported_before_stays():
    with hidden_module("sys"):
        import sys as again
    assert again is sys


def test_it_comes_back_after_an_error(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(KeyError), hidden_module("colorsys"):
        raise KeyError
    assert "colorsys" not in sys.modules


def test_logs_do_not_import_rich_which_stays_importable():
    program = (
        "import sys, pagewire.kit.logs; assert 'rich' not in sys.modules;"
        "import rich; print(rich.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("rich\n", "")
