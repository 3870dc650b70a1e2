"""Tests of the command line's entry: what it lists, what it imports, whom it becomes."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from pagewire import __version__
from pagewire.cli.__main__ import COMMANDS, main
from pagewire.cli.installed import missing_service


def test_help_has_one_line_for_every_command(capsys):
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for command in COMMANDS:
        assert [line.split()[0] for line in lines if command.summary in line] == [command.name]


def test_every_command_has_a_module_that_runs():
    for command in COMMANDS:
        assert callable(importlib.import_module(f"pagewire.cli.{command.module}").run)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pagewire {__version__}\n"


@pytest.mark.parametrize("module", ["__main__", "serve", "chat", "complete", "healthcheck"])
def test_no_command_imports_torch_or_a_service(module):
    program = (
        f"import sys, pagewire.cli.{module}\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'gateway', 'tokenizer_svc',"
        " 'scheduler_svc', 'worker_svc'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("gateway", "gateway"),
        ("tokenizer", "tokenizer_svc"),
        ("scheduler", "scheduler_svc"),
        ("worker", "worker_svc"),
        ("simulate", "scheduler_svc.simulate"),
    ],
)
def test_a_services_command_is_the_service_itself(command, module):
    ours, its = (
        subprocess.run([sys.executable, "-m", *start, "--help"], capture_output=True, text=True)
        for start in (["pagewire.cli", command], [module])
    )
    assert ours.returncode == its.returncode == 0
    assert ours.stdout == its.stdout != ""


def test_a_service_that_is_not_installed_says_what_to_do(monkeypatch):
    monkeypatch.setattr("pagewire.cli.installed.find_spec", lambda name: None)
    message = missing_service("tokenizer_svc")
    assert message is not None and "pip install 'pagewire[tokenizer]'" in message
