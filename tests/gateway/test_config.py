"""The gateway's settings, as flags and in their bounds."""

from __future__ import annotations

import pytest

from gateway.config import GatewayConfig
from pagewire.kit.config import ConfigError, load_config


def load(*argv: str) -> GatewayConfig:
    return load_config(GatewayConfig, prog="gateway", argv=argv, env={})


def test_port_is_an_alias_of_http_port() -> None:
    assert load("--port", "1234").http_port == load("--http-port", "1234").http_port == 1234


def test_nothing_listens_beyond_loopback_by_default() -> None:
    config = load()
    assert config.host == "127.0.0.1"
    assert config.server_config().listen == "127.0.0.1:50050"
    assert config.admin_listen == "127.0.0.1:50060"


def test_an_ipv6_host_is_bracketed_for_grpc() -> None:
    assert load("--host", "::1").server_config().listen == "[::1]:50050"


def test_peers_are_lists_of_targets() -> None:
    config = load("--schedulers", "a:1,dns:///b:2", "--tokenizers", "unix:/tmp/t.sock")
    assert config.schedulers == ("a:1", "dns:///b:2")
    assert config.tokenizers == ("unix:/tmp/t.sock",)


@pytest.mark.parametrize(
    "argv",
    [
        ("--http-port", "70000"),
        ("--schedulers", "nonsense"),
        ("--recovery-timeout", "0"),
        ("--request-timeout", "inf"),
        ("--max-body-bytes", "0"),
        ("--api-key", "é"),
        ("--tls-allowed-sans", "client"),
        ("--tls-admin-allowed-sans", "admin"),
        ("--nope", "1"),
    ],
)
def test_bad_settings_are_refused_by_name(argv: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=argv[0]):
        load(*argv)


def test_names_of_callers_are_refused_with_certificates_too() -> None:
    """A list of the services' certificates says nothing of clients."""
    files = ("--tls-cert=c", "--tls-key=k", "--tls-ca=a")
    assert load(*files).tls.is_on
    with pytest.raises(ConfigError, match=r"--tls-allowed-sans client: .* --ssl-ca-certs"):
        load(*files, "--tls-allowed-sans=client")
