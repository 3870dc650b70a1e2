"""Tests of the plan of a stack: what flags become what command lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from pagewire.cli.ready import parse_ready_line, ready_line
from pagewire.cli.stack import (
    Addresses,
    GatewayOptions,
    MessageOptions,
    ServeConfig,
    StackConfig,
    TokenizerOptions,
    choose_addresses,
    plan_children,
    plan_environment,
    reachable,
)
from pagewire.engine_config import EngineConfig
from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.config_fields import settings_of
from pagewire.kit.tls import TlsConfig
from scheduler_svc.config import SchedulerServiceConfig
from tokenizer_svc.config import TokenizerServiceConfig
from worker_svc.config import WorkerConfig

CONFIGS = {
    "gateway": GatewayConfig,
    "scheduler": SchedulerServiceConfig,
    "worker": WorkerConfig,
    "tokenizer": TokenizerServiceConfig,
}
RUNTIME_DIR = Path("/run/pagewire-1-x")


def plan(*flags: str, env: dict[str, str] | None = None) -> dict[str, list[str]]:
    """Return the flags of each child by its name."""
    config = load_config(
        ServeConfig,
        prog="pagewire serve",
        argv=["--http-port=0", "--grpc-port=0", *flags],
        env=env or {},
    )
    addresses = choose_addresses(config.stack, RUNTIME_DIR)
    children = plan_children(config, addresses, env or {})
    assert all(child.argv[:3] == (sys.executable, "-P", "-m") for child in children)
    return {child.name: list(child.argv[4:]) for child in children}


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--internal-transport=tcp", "--metrics-port-base=9100"),
        ("--model=some/model", "--revision=v2", "--max-model-len=512", "--max-body-bytes=2000000"),
    ],
)
def test_every_service_reads_its_flags(flags):
    for name, arguments in plan(*flags).items():
        assert load_config(CONFIGS[name], prog=name, argv=arguments, env={}) is not None


def test_engine_flags_go_to_the_scheduler_and_the_model_to_the_tokenizer_too():
    children = plan("--model=some/model", "--max-model-len=512", "--revision=v2")
    scheduler = load_config(SchedulerServiceConfig, prog="x", argv=children["scheduler"], env={})
    engine = next(
        value for name in scheduler.__dataclass_fields__
        if isinstance(value := getattr(scheduler, name), EngineConfig)
    )  # fmt: skip
    assert (engine.model.model, engine.model.max_model_len) == ("some/model", 512)
    assert {"--model=some/model", "--revision=v2"} <= set(children["tokenizer"])
    assert not any("max-model-len" in flag for flag in children["worker"])


def test_a_flag_wins_over_a_variable_that_the_child_inherits():
    env = {"PAGEWIRE_BLOCK_SIZE": "32"}
    assert "--block-size=16" in plan("--block-size=16", env=env)["scheduler"]


def test_children_are_drained_from_the_clients_inwards():
    assert list(plan()) == ["gateway", "scheduler", "worker", "tokenizer"]


@pytest.mark.parametrize("transport", ["uds", "tcp"])
def test_gateway_and_scheduler_know_where_the_tokenizer_is(transport):
    children = plan(f"--internal-transport={transport}")
    listen = next(flag for flag in children["tokenizer"] if flag.startswith("--listen="))
    tokenizers = f"--tokenizers={listen.removeprefix('--listen=')}"
    assert tokenizers in children["gateway"]
    assert tokenizers in children["scheduler"]


def test_metrics_ports_follow_one_another():
    children = plan("--metrics-port-base=9100")
    ports = {name: next(f for f in flags if "metrics" in f) for name, flags in children.items()}
    assert ports["gateway"] == "--metrics-port=9100" and ports["worker"] == "--metrics-port=9103"


def test_the_gateways_settings_are_those_of_the_gateway():
    own = {s.flag: (s.default, s.help) for s in settings_of(GatewayConfig)}
    for options in (GatewayOptions, MessageOptions):
        assert {s.flag: (s.default, s.help) for s in settings_of(options)}.items() <= own.items()


def test_every_setting_of_the_gateway_is_given():
    serve = {setting.flag for setting in settings_of(ServeConfig)}
    plans = plan()["gateway"], plan("--grpc-transport=uds")["gateway"]
    planned = {flag.partition("=")[0] for flags in plans for flag in flags}
    between_machines = {setting.flag for setting in settings_of(TlsConfig)}
    given = serve | planned | between_machines
    assert {s.flag for s in settings_of(GatewayConfig)} - given == set()


def test_limits_and_access_reach_the_gateway():
    flags = [
        "--max-requests-per-minute=60", "--max-concurrent-requests=4", "--max-header-bytes=4096",
        '--allowed-origins=["https://a.example", "https://b.example"]', "--allow-credentials",
        "--api-key-file=/etc/keys", "--tokenizer-timeout=7", "--gateway-id=g1",
    ]  # fmt: skip
    gateway = load_config(GatewayConfig, prog="x", argv=plan(*flags)["gateway"], env={})
    assert gateway.access.max_requests_per_minute == 60
    assert gateway.access.max_concurrent_requests == 4
    assert gateway.access.api_key_file == Path("/etc/keys")
    assert gateway.cors.allowed_origins == ("https://a.example", "https://b.example")
    assert gateway.cors.allow_credentials
    assert gateway.limits.max_header_bytes == 4096
    assert (gateway.timeouts.tokenizer_timeout_s, gateway.gateway_id) == (7.0, "g1")
    none = load_config(GatewayConfig, prog="x", argv=plan("--allowed-origins=")["gateway"], env={})
    assert none.cors.allowed_origins == ()


def test_the_settings_of_the_tokenizer_are_its_own_and_reach_it():
    own = {s.flag: (s.default, s.help) for s in settings_of(TokenizerServiceConfig)}
    options = {s.flag: (s.default, s.help) for s in settings_of(TokenizerOptions)}
    assert options.items() <= own.items()
    flags = ["--chat-template=t.jinja", "--tokenizer=other", "--trust-request-chat-template"]
    assert set(flags) <= set(plan(*flags)["tokenizer"])


def test_the_public_grpc_api_may_be_on_a_socket_that_the_ready_line_names():
    config = load_config(StackConfig, prog="x", argv=["--grpc-transport=uds", "--port=0"], env={})
    addresses = choose_addresses(config, RUNTIME_DIR)
    socket = f"unix:{RUNTIME_DIR}/gateway.sock"
    assert f"--grpc-listen={socket}" in plan("--grpc-transport=uds")["gateway"]
    parsed = parse_ready_line(ready_line(addresses, "smollm2"))
    assert parsed is not None and parsed[1] == socket


def test_keys_travel_in_the_environment():
    for given, keys in (("a,b", ("a", "b")), ('["x=s,t", "b"]', ("x=s,t", "b"))):
        config = load_config(ServeConfig, prog="x", argv=["--api-key", given], env={})
        environment = plan_environment(config, {})
        gateway = load_config(GatewayConfig, prog="x", argv=[], env=environment)
        assert gateway.access.api_key == keys


def test_services_of_one_machine_do_not_take_up_the_certificates_of_its_environment():
    environment = plan_environment(ServeConfig(), {"PAGEWIRE_TLS_CERT": "/c", "PATH": "/bin"})
    assert environment["PATH"] == "/bin"
    assert not any(name.startswith("PAGEWIRE_TLS_") for name in environment)


def test_clients_may_be_served_with_tls():
    flags = ["--ssl-certfile=/c", "--ssl-keyfile=/k", "--ssl-ca-certs=/a"]
    gateway = load_config(GatewayConfig, prog="x", argv=plan(*flags)["gateway"], env={})
    assert gateway.ssl.paths is not None
    assert [str(path) for path, _ in gateway.ssl.paths] == ["/c", "/k", "/a"]


def test_the_engine_is_served_to_smg_only_where_it_is_asked_for_and_on_loopback():
    assert not any("vllm-grpc" in flag for flag in plan()["scheduler"])
    (flag,) = [
        flag
        for flag in plan("--host=0.0.0.0", "--vllm-grpc-port=0")["scheduler"]
        if "vllm-grpc" in flag
    ]
    assert flag.startswith("--vllm-grpc-listen=127.0.0.1:")


def test_an_address_of_another_machine_is_refused():
    with pytest.raises(ConfigError, match=r"--host 192\.0\.2\.1"):
        choose_addresses(StackConfig(host="192.0.2.1", http_port=0), RUNTIME_DIR)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--http-port=70000"], "--http-port 70000: must be between 0 and 65535"),
        (["--http-port=9", "--grpc-port=9"], "--grpc-port 9: must differ from the HTTP port"),
        (["--http-port=9", "--vllm-grpc-port=9"], "--vllm-grpc-port 9: must be a port of its own"),
        (["--block-size=0"], "--block-size 0: must be between 1 and 1024"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ],
)
def test_wrong_flags_are_found_before_anything_starts(flags, message):
    with pytest.raises(ConfigError, match=message):
        load_config(ServeConfig, prog="x", argv=flags, env={})


def test_clients_reach_a_wildcard_address_by_loopback():
    addresses = Addresses("0.0.0.0:80", "[::]:81", {}, {})
    assert (addresses.http_url, addresses.grpc_target) == ("http://127.0.0.1:80", "[::1]:81")
    assert reachable("10.0.0.1:5") == "10.0.0.1:5"
