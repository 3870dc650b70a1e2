"""What no module of the services may do: read pickles, evaluate text, load code of models."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pagewire", "gateway", "tokenizer_svc", "scheduler_svc", "worker_svc")

MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "copyreg"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
# Of torch.distributed: they pickle what they carry.
OBJECT_COLLECTIVES = {
    "all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list",
    "send_object_list", "recv_object_list",
}  # fmt: skip
CALLS = {
    ("torch", "load"), ("torch", "save"), ("torch.jit", "load"), ("np", "load"), ("numpy", "load"),
    ("yaml", "unsafe_load"), ("yaml", "full_load"), ("os", "system"), ("os", "popen"),
    ("tempfile", "mktemp"), ("jinja2", "Environment"), ("jinja2", "Template"),
}  # fmt: skip


def findings(tree: ast.AST) -> Iterator[str]:
    """Name what a module does and may not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {n.name}" for n in node.names if n.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] in MODULES:
                yield f"from {node.module} import"
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in BUILTINS:
        yield f"{function.id}()"
    if isinstance(function, ast.Attribute):
        owner = ast.unparse(function.value)
        if (owner, function.attr) in CALLS or function.attr in OBJECT_COLLECTIVES:
            yield f"{owner}.{function.attr}()"
        loaders = [*node.args[1:], *(k.value for k in node.keywords if k.arg == "Loader")]
        is_safe = any(ast.unparse(loader) in ("_StrictLoader", "SafeLoader") for loader in loaders)
        if (owner, function.attr) == ("yaml", "load") and not is_safe:
            yield "yaml.load() without a safe loader"
    for keyword in node.keywords:
        is_false = isinstance(keyword.value, ast.Constant) and not keyword.value.value
        if keyword.arg in ("shell", "trust_remote_code", "allow_pickle") and not is_false:
            yield f"{keyword.arg}="


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_does_what_runs_the_code_of_others(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    found = {
        str(file.relative_to(ROOT)): what
        for file in files
        if (what := list(findings(ast.parse(file.read_text()))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle", "from pickle import loads", "import pickle as p", "eval(x)", "exec(x)",
        "torch.load(f)", "yaml.load(t)", "yaml.load(t, yaml.Loader)", "np.load(f)",
        "dist.broadcast_object_list(x)", "run(x, shell=True)", "f(trust_remote_code=flag)",
        "jinja2.Environment()",
    ],
)  # fmt: skip
def test_each_of_them_is_found(text: str) -> None:
    assert len(list(findings(ast.parse(text)))) == 1


@pytest.mark.parametrize(
    "text", ["yaml.load(t, _StrictLoader)", "f(trust_remote_code=False)", "model.eval()"]
)
def test_what_is_harmless_is_not(text: str) -> None:
    assert list(findings(ast.parse(text))) == []
