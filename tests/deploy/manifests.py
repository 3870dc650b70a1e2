"""The Kubernetes manifests as kubectl builds them, and questions about them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.deploy.rendering import ROOT

KUBERNETES = ROOT / "deploy" / "kubernetes"
FORMS = (
    "base",
    "overlays/autoscale",
    "overlays/gpu",
    "overlays/sidecar",
    "overlays/gpu-sidecar",
)
SERVICES = ("gateway", "tokenizer", "scheduler", "worker")
NAME = "app.kubernetes.io/name"
_KUBECTL = Path(sys.executable).parent / "kubectl"


@cache
def built(form: str) -> tuple[Any, ...]:
    """All objects of a form."""
    command = [_KUBECTL, "kustomize", KUBERNETES / form]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(yaml.load_all(text, yaml.CSafeLoader))


def validate(item: Any) -> None:
    """Check an object by the strict schema of its kind, of the newest Kubernetes that there is.

    As kubernetes_validate.validate does, which reads all definitions anew for each object.

    Raises:
        jsonschema.ValidationError: It does not fit.
    """
    folder, definitions = _schemas()
    group, _, number = item["apiVersion"].rpartition("/")
    prefix = f"{group.partition('.')[0]}-" if group else ""
    schema = json.loads((folder / f"{item['kind'].lower()}-{prefix}{number}.json").read_text())
    jsonschema.Draft202012Validator(schema, registry=definitions).validate(item)


@cache
def _schemas() -> tuple[Path, Registry[Any]]:
    newest = kubernetes_validate.latest_version()
    package = Path(kubernetes_validate.__file__).parent
    folder = package / "kubernetes-json-schema" / f"v{newest}-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text())
    resource = Resource.from_contents(definitions, default_specification=DRAFT202012)
    return folder, Registry().with_resource("_definitions.json", resource).crawl()


def of_kind(form: str, *kinds: str) -> dict[str, Any]:
    """Objects of some kinds, by name."""
    return {each["metadata"]["name"]: each for each in built(form) if each["kind"] in kinds}


def workloads(form: str) -> dict[str, Any]:
    return of_kind(form, "Deployment", "StatefulSet")


def pod(form: str, service: str) -> Any:
    """The pod's specification of a service."""
    return workloads(form)[service]["spec"]["template"]["spec"]


def container(form: str, service: str) -> Any:
    """The service's own container."""
    (found,) = pod(form, service)["containers"]
    return found


def flags(form: str, service: str) -> dict[str, str]:
    """What the service is told."""
    return dict(flag.split("=", 1) for flag in container(form, service)["args"])


def labels(form: str, service: str) -> Mapping[str, str]:
    found: Mapping[str, str] = workloads(form)[service]["spec"]["template"]["metadata"]["labels"]
    return found


@dataclass(frozen=True)
class Edge:
    """Who may speak to whom; strangers are named by the label of their namespace."""

    source: str
    target: str
    port: int


def edges(form: str) -> tuple[set[Edge], set[Edge]]:
    """What network policies let out of pods, and what they let into pods, names' own apart."""
    leaving, arriving = set(), set()
    for policy in of_kind(form, "NetworkPolicy").values():
        spec = policy["spec"]
        this = spec["podSelector"].get("matchLabels", {}).get(NAME)
        if this is None:
            continue
        for rule in spec.get("egress", ()):
            for peer in rule["to"]:
                leaving |= {Edge(this, _peer(peer), each["port"]) for each in rule["ports"]}
        for rule in spec.get("ingress", ()):
            for peer in rule["from"]:
                arriving |= {Edge(_peer(peer), this, each["port"]) for each in rule["ports"]}
    return leaving, arriving


def _peer(peer: Any) -> str:
    (selector,) = peer.values()
    ((key, value),) = selector["matchLabels"].items()
    return value if key == NAME else f"{key}={value}"
