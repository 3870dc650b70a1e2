"""Says whether a service's folder, or a package of an extra, is installed, without importing it."""

from __future__ import annotations

from importlib.util import find_spec

_EXTRAS = {
    "gateway": "gateway",
    "tokenizer_svc": "tokenizer",
    "scheduler_svc": "scheduler",
    "worker_svc": "worker",
}


def missing_service(module: str) -> str | None:
    """Return what to do if the service `module` is not here; None if it is."""
    if find_spec(module) is not None:
        return None
    extra = _EXTRAS[module]
    return f"the service {module} is not installed: run `pip install 'pagewire[{extra}]'`"


def missing_smg_proto() -> str | None:
    """Return what to do if the messages of VllmEngine are not here; None if they are."""
    if find_spec("smg_grpc_proto") is not None:
        return None
    return "--vllm-grpc-port needs the package smg-grpc-proto: run `pip install 'pagewire[smg]'`"
