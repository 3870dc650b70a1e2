"""Tests of the plan of a stack: what flags become what command lines."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import pytest

from gateway.config import GatewayConfig
from pagewire.cli.addresses import Addresses, _LoopbackPorts, choose_addresses, reachable
from pagewire.cli.ready import parse_ready_line, ready_line
from pagewire.cli.stack import plan_children, plan_environment
from pagewire.cli.stack_config import (
    GatewayOptions,
    MessageOptions,
    ServeConfig,
    StackConfig,
    TokenizerOptions,
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
    addresses = choose_addresses(config.stack, RUNTIME_DIR, config.engine.parallel.world_size)
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
    flags = ["--chat-template=t.jinja", "--trust-request-chat-template"]
    assert set(flags) <= set(plan(*flags)["tokenizer"])


def test_a_tokenizer_from_elsewhere_reaches_all_that_compare_it():
    """Else the vocabularies of tokenizer and engine would differ for good."""
    children = plan("--tokenizer=other", "--data-parallel-size=2")
    for name in ("tokenizer", "scheduler-0", "scheduler-1"):
        assert "--tokenizer=other" in children[name]
    assert not any(flag.startswith("--tokenizer=") for flag in plan()["tokenizer"])


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
        (
            ["--grpc-port=9", "--vllm-grpc-port=8", "--data-parallel-size=2"],
            "--vllm-grpc-port 8: must be a port of its own",
        ),
        (
            ["--vllm-grpc-port=65535", "--data-parallel-size=2"],
            "--vllm-grpc-port 65535: leaves too few ports for all replicas",
        ),
        (["--data-parallel-size=0"], "--data-parallel-size 0: must be 1 to 64"),
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


def listening(flags: list[str]) -> str:
    return next(flag for flag in flags if flag.startswith("--listen=")).removeprefix("--listen=")


@pytest.mark.parametrize("transport", ["uds", "tcp"])
def test_replicas_have_workers_of_their_own_and_share_gateway_and_tokenizer(transport):
    flags = ("--data-parallel-size=2", "--tensor-parallel-size=2", "--device=cpu")
    children = plan(*flags, f"--internal-transport={transport}")
    assert list(children) == [
        "gateway", "scheduler-0", "scheduler-1",
        "worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1", "tokenizer",
    ]  # fmt: skip
    listens = {name: listening(flags) for name, flags in children.items() if name != "gateway"}
    assert len(set(listens.values())) == len(listens)
    schedulers = f"--schedulers={listens['scheduler-0']},{listens['scheduler-1']}"
    assert schedulers in children["gateway"]
    for replica in (0, 1):
        ranks = (listens[f"worker-{replica}-{rank}"] for rank in (0, 1))
        assert f"--workers={','.join(ranks)}" in children[f"scheduler-{replica}"]
        assert f"--tokenizers={listens['tokenizer']}" in children[f"scheduler-{replica}"]


def test_metrics_ports_of_replicas_follow_one_another_too():
    children = plan("--data-parallel-size=2", "--metrics-port-base=9100")
    ports = {name: next(f for f in flags if "metrics" in f) for name, flags in children.items()}
    assert sorted(ports, key=ports.__getitem__) == [
        "gateway", "tokenizer", "scheduler-0", "scheduler-1", "worker-0", "worker-1",
    ]  # fmt: skip
    assert len(set(ports.values())) == len(ports)


def scheduler_threads(*flags: str) -> set[int | None]:
    children = plan(*flags)
    configs = [
        load_config(SchedulerServiceConfig, prog="x", argv=children[name], env={})
        for name in children
        if name.startswith("scheduler")
    ]
    return {config.engine.device.num_threads for config in configs}


def test_replicas_divide_the_cores_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr("pagewire.cli.devices.usable_cores", lambda: 9)
    assert scheduler_threads() == {None}
    assert scheduler_threads("--data-parallel-size=2") == {4}
    assert scheduler_threads("--data-parallel-size=2", "--tensor-parallel-size=4") == {1}
    assert scheduler_threads("--data-parallel-size=20") == {1}
    assert scheduler_threads("--data-parallel-size=2", "--num-threads=7") == {7}


def test_workers_know_with_how_many_replicas_they_share_the_machine():
    for flags, number in (((), 1), (("--data-parallel-size=3",), 3)):
        children = plan(*flags)
        workers = [
            load_config(WorkerConfig, prog="x", argv=children[name], env={})
            for name in children
            if name.startswith("worker")
        ]
        assert [worker.replicas_on_machine for worker in workers] == [number] * number


def test_workers_prepare_a_real_device_while_the_others_start():
    told = {name for name, flags in plan().items() if "--preload" in flags}
    assert told == {"worker"}
    assert "--preload" not in plan("--device=sim")["worker"]


def test_workers_alone_are_told_where_traces_go():
    children = plan("--data-parallel-size=2", "--profiler-dir=/traces")
    told = {name for name, flags in children.items() if "--profiler-dir=/traces" in flags}
    assert told == {"worker-0", "worker-1"}
    assert not any("--profiler-dir" in flag for flags in plan().values() for flag in flags)


def test_replicas_take_the_machines_cuda_devices_in_turn():
    config = load_config(
        ServeConfig,
        prog="x",
        argv=["--http-port=0", "--grpc-port=0", "--data-parallel-size=2"],
        env={},
    )
    addresses = choose_addresses(config.stack, RUNTIME_DIR)
    children = plan_children(config, addresses, {"CUDA_VISIBLE_DEVICES": "4,6"})
    found = {child.name: child.environment.get("CUDA_VISIBLE_DEVICES") for child in children}
    assert (found["worker-0"], found["worker-1"], found["scheduler-0"]) == ("4", "6", None)


@pytest.mark.parametrize("port", [0, 41000])
def test_each_replica_is_served_to_smg_on_a_port_of_its_own(monkeypatch, port):
    monkeypatch.setattr("pagewire.cli.addresses._bindable", bindable := ports_from(42000))
    children = plan("--data-parallel-size=2", f"--vllm-grpc-port={port}")
    flags = [f for name in children for f in children[name] if "vllm-grpc-listen" in f]
    assert len(set(flags)) == 2
    if port:
        assert [flag.rpartition(":")[2] for flag in flags] == ["41000", "41001"]
    assert bindable("127.0.0.1", 5) == 5


def ports_from(first):
    ports = count(first)
    return lambda host, port: port or next(ports)


def test_a_port_is_never_given_out_twice(monkeypatch):
    answers = iter([7, 7, 8])
    monkeypatch.setattr("pagewire.cli.addresses._bindable", lambda host, port: next(answers))
    ports = _LoopbackPorts()
    assert [ports.take(7), ports.take(7)] == ["127.0.0.1:7", "127.0.0.1:8"]


def test_services_leave_the_public_ports_alone(monkeypatch):
    monkeypatch.setattr("pagewire.cli.addresses._bindable", ports_from(42000))
    flags = ["--http-port=50061", "--grpc-port=50051", "--vllm-grpc-port=50053"]
    children = plan(*flags, "--internal-transport=tcp")
    assert listening(children["tokenizer"]) not in ("127.0.0.1:50051", "127.0.0.1:50061")
    assert listening(children["worker"]) != "127.0.0.1:50053"
    assert "--admin-listen=127.0.0.1:50061" not in children["tokenizer"]


def test_the_ready_line_tells_how_many_replicas_there_are():
    addresses = Addresses("127.0.0.1:80", "127.0.0.1:81", {}, {})
    line = ready_line(addresses, "m", num_replicas=3)
    assert ", 3 replicas. Try: " in line
    assert parse_ready_line(line) == ("http://127.0.0.1:80", "127.0.0.1:81")
