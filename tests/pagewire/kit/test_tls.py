"""TLS settings, files that are wrong or replaced, and what is said of plain text and refusals."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest

from pagewire.kit.config import ConfigError, load_config
from pagewire.kit.healthcheck import check
from pagewire.kit.port_security import PortSecurity, QuietPeriod, is_reachable_from_outside
from pagewire.kit.server import ServerConfig, ServiceServer
from pagewire.kit.tls import TlsConfig
from tests.security.authority import Authority

from .echo_service import SERVICE


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


def load(*flags: str, **env: str) -> TlsConfig:
    return load_config(TlsConfig, prog="x", argv=flags, env=env)


def test_settings_come_from_flags_and_the_environment(authority):
    files = authority.issue("worker")
    by_flags = load(*files.flags(), "--tls-domain=ns.svc")
    by_environment = load(
        PAGEWIRE_TLS_CERT=str(files.cert),
        PAGEWIRE_TLS_KEY=str(files.key),
        PAGEWIRE_TLS_CA=str(files.ca),
        PAGEWIRE_TLS_DOMAIN="ns.svc",
    )
    assert by_flags == by_environment
    assert by_flags.peer("worker").server_name == "worker.ns.svc"
    assert by_flags.callers(["scheduler"]) == {"scheduler.ns.svc"}
    assert by_flags.admin_callers() == {"admin.ns.svc"}
    assert load().peer("worker") is None


def test_allow_lists_take_the_place_of_roles(authority):
    config = load(
        *authority.issue("worker").flags(),
        "--tls-allowed-sans=Gate.example,spiffe://x/Ns",
        "--tls-admin-allowed-sans=*",
    )
    assert config.callers(["gateway"]) == {"gate.example", "spiffe://x/Ns"}
    assert config.admin_callers() == {"*"}


@pytest.mark.parametrize("flag", ["--tls-allowed-sans", "--tls-admin-allowed-sans"])
def test_an_allow_list_without_certificates_is_refused(flag):
    with pytest.raises(ConfigError, match=f"{flag} a,b: restricts nobody.*set --tls-cert"):
        load(f"{flag}=a,b")
    variable = "PAGEWIRE" + flag[1:].replace("-", "_").upper()
    with pytest.raises(ConfigError, match=f"{variable}=a: restricts nobody"):
        load(**{variable: "a"})


@pytest.mark.parametrize("missing", ["cert", "key", "ca"])
def test_the_three_files_go_together(authority, missing):
    flags = [f for f in authority.issue("a").flags() if not f.startswith(f"--tls-{missing}")]
    with pytest.raises(ConfigError, match=f"--tls-{missing}.*go together"):
        load(*flags)


def test_a_file_that_cannot_be_used_is_named_by_its_flag(authority, tmp_path):
    files, other = authority.issue("a"), authority.issue("b")
    (tmp_path / "text").write_text("no certificate")
    for cert, key, ca, message in (
        (tmp_path / "none", files.key, files.ca, "--tls-cert .*none: no such file"),
        (files.cert, other.key, files.ca, "must be PEM files of a certificate and its key"),
        (tmp_path / "text", files.key, files.ca, "must be PEM files of a certificate and its key"),
        (files.cert, files.key, tmp_path / "text", "--tls-ca .*text: has no certificate"),
    ):
        with pytest.raises(ConfigError, match=message):
            TlsConfig(cert, key, ca).peer("worker")


async def test_a_server_with_files_that_cannot_be_used_does_not_start(authority, tmp_path):
    files = authority.issue("a")
    config = ServerConfig(tls=TlsConfig(tmp_path / "none", files.key, files.ca))
    with pytest.raises(ConfigError, match="--tls-cert"):
        await ServiceServer(config, SERVICE, []).start()


async def test_a_certificate_that_is_replaced_is_shown_at_the_next_handshake(authority):
    files, peer = authority.issue("worker", days=-1), authority.issue("scheduler").peer("worker")
    server = ServiceServer(ServerConfig(tls=files.config()), SERVICE, [])
    await server.start()
    try:
        assert (await check(server.address, tls=peer)).status == "UNREACHABLE"  # it has expired
        authority.issue("worker")  # the same files
        assert (await check(server.address, tls=peer)).serving
        files.key.write_text("half written")
        assert (await check(server.address, tls=authority.issue("x").peer("worker"))).serving
    finally:
        await server.stop(0)


async def test_a_client_shows_a_certificate_that_is_replaced_when_it_connects_anew(authority):
    server = ServiceServer(ServerConfig(tls=authority.issue("worker").config()), SERVICE, [])
    files = authority.issue("scheduler", days=-1)
    peer = files.peer("worker")
    await server.start()
    try:
        assert (await check(server.address, tls=peer)).status == "UNREACHABLE"  # it has expired
        authority.issue("scheduler")  # the same files
        assert (await check(server.address, tls=peer)).serving
        renewed = peer.current()
        assert renewed is peer.current() and renewed is not peer.credentials
        files.key.write_text("half written")
        assert (await check(server.address, tls=peer)).serving
        assert peer.current() is renewed
    finally:
        await server.stop(0)


async def test_a_unix_socket_stays_plain(authority, tmp_path):
    tls = authority.issue("worker").config()
    server = ServiceServer(ServerConfig(f"unix:{tmp_path}/s", tls=tls), SERVICE, [])
    await server.start()
    try:
        peer = authority.issue("scheduler").peer("worker")
        assert (await check(server.address, tls=peer)).serving
    finally:
        await server.stop(0)


async def test_without_an_authority_clients_show_no_certificate(authority, tmp_path):
    files = authority.issue("localhost")
    paths = TlsConfig(files.cert, files.key, files.ca).paths
    public = PortSecurity(paths.__class__(files.cert, files.key, None, paths.flags), None, True)
    server = ServiceServer(ServerConfig(), SERVICE, [], public=public)
    await server.start()
    try:
        credentials = grpc.ssl_channel_credentials(files.ca.read_bytes())
        options = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(server.address, credentials, options) as channel:
            await channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("address", "is_outside"),
    [
        ("0.0.0.0:1", True), ("[::]:1", True), ("10.0.0.1:1", True), ("worker:1", True),
        ("127.0.0.1:1", False), ("[::1]:1", False), ("localhost:1", False), ("unix:/s", False),
    ],
)  # fmt: skip
def test_which_addresses_are_reachable_from_outside(address, is_outside):
    assert is_reachable_from_outside(address) == is_outside


@pytest.mark.parametrize(
    ("listen", "public", "is_warned"),
    [
        ("0.0.0.0:0", None, True),
        ("127.0.0.1:0", None, False),
        ("0.0.0.0:0", PortSecurity(is_public=True), False),
    ],
)
async def test_plain_text_to_the_outside_is_warned_of(caplog, listen, public, is_warned):
    server = ServiceServer(ServerConfig(listen), SERVICE, [], public=public)
    with caplog.at_level(logging.WARNING):
        await server.start()
        await server.stop(0)
    assert any("plain_text_port" in str(r.msg) for r in caplog.records) == is_warned


def test_refusals_are_told_once_a_minute_with_how_many_came_between():
    now_s = 0.0
    quiet = QuietPeriod(lambda: now_s)
    assert [quiet.enter() for _ in range(3)] == [0, None, None]
    now_s = 60.0
    assert [quiet.enter(), quiet.enter()] == [2, None]
