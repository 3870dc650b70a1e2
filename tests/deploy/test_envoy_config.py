"""Configurations of sidecars: what they say, and that Envoy takes them."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import GatewayConfig
from pagewire.kit.errors import NOT_BEGUN_HEADER
from pagewire.v1 import inference_pb2, scheduler_pb2, tokenizer_pb2, worker_pb2
from scheduler_svc.config import SchedulerServiceConfig
from tests.deploy.rendering import ENVOY, SCRIPT, render
from tokenizer_svc.config import TokenizerServiceConfig
from worker_svc.config import WorkerConfig

PEERS = {
    "gateway": ["gateway"],
    "tokenizer": ["tokenizer"],
    "scheduler": ["scheduler-0.scheduler", "scheduler-1.scheduler"],
    "worker": ["worker-0.worker", "worker-1.worker"],
}
SERVICES = {
    "inference": inference_pb2.DESCRIPTOR.services_by_name["InferenceService"],
    "tokenizer": tokenizer_pb2.DESCRIPTOR.services_by_name["TokenizerService"],
    "scheduler": scheduler_pb2.DESCRIPTOR.services_by_name["SchedulerService"],
    "worker": worker_pb2.DESCRIPTOR.services_by_name["WorkerService"],
}


@pytest.fixture(params=render.ROLES)
def config(request: pytest.FixtureRequest) -> Any:
    files = render.Sidecar(request.param, PEERS).files()
    return yaml.load(files["envoy.yaml"], yaml.CSafeLoader)


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping in a configuration."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from walk(each)


def test_the_table_has_the_ports_at_which_services_listen() -> None:
    gateway = GatewayConfig()
    servers = {
        "inference": gateway.server_config(),
        "tokenizer": TokenizerServiceConfig().server,
        "scheduler": SchedulerServiceConfig().server,
        "worker": WorkerConfig().server,
    }
    for name, server in servers.items():
        endpoint = render.MESH[name]
        assert endpoint["app_port"] == int(server.listen.rpartition(":")[2])
        assert endpoint["metrics_port"] == server.metrics_port
    assert render.MESH["openai"]["app_port"] == gateway.http_port
    assert servers.keys() | {"openai"} == render.MESH.keys()


def test_callers_find_each_other_at_the_default_addresses_of_their_flags() -> None:
    scheduler, gateway = SchedulerServiceConfig(), GatewayConfig()
    used = {
        "gateway": {*gateway.schedulers, *gateway.tokenizers},
        "scheduler": {*scheduler.workers, *scheduler.tokenizers},
    }
    for role, addresses in used.items():
        offered = {
            f"127.0.0.1:{endpoint['app_port']}"
            for endpoint in render.MESH.values()
            if role in endpoint["callers"]
        }
        assert offered == addresses


@pytest.mark.parametrize("name", SERVICES)
def test_the_table_has_the_methods_of_the_protocol(name: str) -> None:
    grpc = render.MESH[name]["grpc"]
    assert grpc["service"] == SERVICES[name].full_name
    assert sorted(grpc["retried"] + grpc["once"]) == sorted(SERVICES[name].methods_by_name)


def test_streams_that_keep_state_are_never_tried_again() -> None:
    for name, service in SERVICES.items():
        both_ways = {each.name for each in service.methods if each.client_streaming}
        assert both_ways.isdisjoint(render.MESH[name]["grpc"]["retried"])


def test_no_stream_has_an_idle_timeout_or_a_longest_life(config: Any) -> None:
    managers = [each for each in walk(config) if "stream_idle_timeout" in each]
    assert {each["stream_idle_timeout"] for each in managers} == {"0s"}
    assert len(managers) == len(config["static_resources"]["listeners"])
    routes = [each for each in walk(config) if "max_stream_duration" in each and "timeout" in each]
    assert {each["timeout"] for each in routes} == {"0s"}
    assert [each["max_stream_duration"] for each in routes] == [
        {"max_stream_duration": "0s", "grpc_timeout_header_max": "0s"}
    ] * len(routes)
    forbidden = {"max_connection_duration", "per_try_timeout", "request_timeout"}
    assert all(forbidden.isdisjoint(each) for each in walk(config))


def test_only_ports_with_mtls_and_the_status_port_are_open_to_others(config: Any) -> None:
    for listener in config["static_resources"]["listeners"]:
        address = listener["address"]["socket_address"]["address"]
        (chain,) = listener["filter_chains"]
        if not ipaddress.ip_address(address).is_loopback and listener["name"] != "status":
            assert chain["transport_socket"]["typed_config"]["require_client_certificate"] is True
    assert config["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


def test_the_status_port_lets_no_calls_through(config: Any) -> None:
    (status,) = [
        each for each in config["static_resources"]["listeners"] if each["name"] == "status"
    ]
    paths = [each["match"] for each in walk(status) if "match" in each]
    allowed = ["/ready", "/stats/prometheus", "/metrics", "/grpc.health.v1.Health/Check"]
    assert all(match["path"] in allowed and len(match) == 1 for match in paths) and paths


def test_each_side_checks_the_role_of_the_other() -> None:
    made = {
        role: render.Sidecar(role, PEERS, tls_domain="example").files() for role in render.ROLES
    }
    for name, endpoint in render.MESH.items():
        callee = yaml.load(made[endpoint["service"]]["envoy.yaml"], yaml.CSafeLoader)
        assert _names(callee, f"ingress-{name}") == {
            f"{role}.example" for role in endpoint["callers"]
        }
        for role in endpoint["callers"]:
            caller = yaml.load(made[role]["envoy.yaml"], yaml.CSafeLoader)
            first = name if endpoint["choice"] == "sidecar" else f"{name}-0"
            assert _names(caller, first) == {f"{endpoint['service']}.example"}


def _names(config: Any, name: str) -> set[str]:
    """Names of certificates that a listener or cluster takes."""
    resources = config["static_resources"]
    (found,) = [e for e in resources["listeners"] + resources["clusters"] if e["name"] == name]
    lists = [
        e["match_typed_subject_alt_names"]
        for e in walk(found)
        if "match_typed_subject_alt_names" in e
    ]
    return {each["matcher"]["exact"] for names in lists for each in names}


def test_retries_go_to_replicas_that_were_not_tried(config: Any) -> None:
    policies = [each["retry_policy"] for each in walk(config) if "retry_policy" in each]
    for policy in policies:
        (predicate,) = policy["retry_host_predicate"]
        assert predicate["name"] == "envoy.retry_host_predicates.previous_hosts"
        assert "5xx" not in policy["retry_on"] and "reset" not in policy["retry_on"].split(",")


def test_no_status_alone_has_a_call_tried_again(config: Any) -> None:
    """It may be of a call that was admitted."""
    policies = [each["retry_policy"] for each in walk(config) if "retry_policy" in each]
    for policy in policies:
        assert set(policy["retry_on"].split(",")) == {
            "connect-failure", "refused-stream", "reset-before-request", "retriable-headers"
        }  # fmt: skip
        assert "retriable_status_codes" not in policy
        (header,) = policy["retriable_headers"]
        assert header == {"name": NOT_BEGUN_HEADER, "string_match": {"exact": "1"}}
    managers = [each for each in walk(config) if "local_reply_config" in each]
    assert len(managers) == len(config["static_resources"]["listeners"])
    for manager in managers:
        (mapper,) = manager["local_reply_config"]["mappers"]
        # None of these is of a call that went out.
        assert mapper["filter"] == {"response_flag_filter": {"flags": ["UF", "UH", "UO"]}}
        (added,) = mapper["headers_to_add"]
        assert added["header"] == {"key": NOT_BEGUN_HEADER, "value": "1"}


@pytest.mark.parametrize("role", render.ROLES)
def test_envoy_takes_what_the_script_writes(role: str, tmp_path: Path) -> None:
    called = {e["service"] for e in render.MESH.values() if role in e["callers"]}
    peers = [f"--peer={service}={','.join(PEERS[service])}" for service in sorted(called)]
    command = [sys.executable, str(SCRIPT), role, *peers, f"--out={tmp_path}"]
    subprocess.run([*command, f"--config-dir={tmp_path}"], check=True)
    done = subprocess.run(
        [ENVOY, "--mode", "validate", "-c", tmp_path / "envoy.yaml", "--log-level", "warn"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in (done.stdout + done.stderr).lower()


def test_a_peer_that_is_missing_is_named(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "gateway", "--peer=tokenizer=t", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "gateway calls scheduler" in done.stderr
    assert list(tmp_path.iterdir()) == []
