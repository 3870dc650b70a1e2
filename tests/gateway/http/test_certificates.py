"""The HTTP port's certificate and authorities, replaced while it serves."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.http.protocol import ConnectionLimits
from gateway.http.server import HttpServer
from pagewire.kit.config import ConfigError
from pagewire.kit.pem import PemPaths
from tests.gateway.http.test_protocol import GET, App, Peer
from tests.security.authority import Authority, Identity

FLAGS = ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs")
NAME = "gateway.test"


def paths(identity: Identity, ca: Path | None = None) -> PemPaths:
    return PemPaths(identity.cert, identity.key, ca, FLAGS)


class Port:
    """A served port, and clients that trust some authority."""

    def __init__(self, given: PemPaths) -> None:
        self.server = HttpServer(
            App(), "127.0.0.1", 0, ConnectionLimits(100, 4096, 20.0, 20.0), tls=given
        )

    async def ask(self, trusted: Authority, shown: Identity | None = None) -> int:
        """Ask on a connection of its own; the status.

        Raises:
            ssl.SSLError: The handshake failed.
            ConnectionError: The server did not want the client's certificate.
        """
        context = ssl.create_default_context(cafile=trusted.file)
        if shown is not None:
            context.load_cert_chain(shown.cert, shown.key)
        streams = await asyncio.open_connection(
            "127.0.0.1", self.server.port, ssl=context, server_hostname=NAME
        )
        peer = Peer(*streams)
        try:
            await peer.say(GET + b"\r\n")
            return (await peer.answer())[0]
        except asyncio.IncompleteReadError as exc:
            raise ConnectionError from exc
        finally:
            peer.writer.close()


@pytest.fixture
async def open_port() -> AsyncIterator[object]:
    ports: list[Port] = []

    async def start(given: PemPaths) -> Port:
        ports.append(Port(given))
        await ports[-1].server.start()
        return ports[-1]

    yield start
    for port in ports:
        await port.server.stop()


def replace(old: Identity, new: Identity) -> None:
    """As an operator does it: each file at once, one after the other."""
    new.key.rename(old.key)
    new.cert.rename(old.cert)


async def test_a_certificate_that_is_replaced_is_shown_from_the_next_handshake_on(
    open_port, tmp_path
):
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    shown = first.issue(NAME)
    port = await open_port(paths(shown))
    assert await port.ask(first) == 200
    replace(shown, second.issue(NAME, file="new"))
    assert await port.ask(second) == 200
    with pytest.raises(ssl.SSLError):
        await port.ask(first)


async def test_files_that_do_not_fit_together_change_nothing(open_port, tmp_path):
    authority = Authority(tmp_path, "ca")
    shown, new = authority.issue(NAME), authority.issue(NAME, file="new")
    port = await open_port(paths(shown))
    new.key.rename(shown.key)
    assert await port.ask(authority) == 200
    new.cert.rename(shown.cert)
    assert await port.ask(authority) == 200


async def test_clients_are_those_of_the_authority_of_now(open_port, tmp_path):
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    accepted = tmp_path / "accepted.pem"
    accepted.write_bytes(first.file.read_bytes())
    port = await open_port(paths(first.issue(NAME), accepted))
    ours, theirs = first.issue("client"), second.issue("other")
    assert await port.ask(first, ours) == 200
    refused = (ssl.SSLError, ConnectionError)
    for nobody in (theirs, None):
        with pytest.raises(refused):
            await port.ask(first, nobody)
    (tmp_path / "next").write_bytes(second.file.read_bytes())
    (tmp_path / "next").rename(accepted)
    assert await port.ask(first, theirs) == 200
    with pytest.raises(refused):
        await port.ask(first, ours)


async def test_a_client_of_an_authority_that_went_cannot_resume_a_session(open_port, tmp_path):
    authority = Authority(tmp_path, "first")
    shown = authority.issue("client")
    port = await open_port(paths(authority.issue(NAME), authority.file))
    context = ssl.create_default_context(cafile=authority.file)
    context.load_cert_chain(shown.cert, shown.key)
    session = await asyncio.to_thread(session_after_an_answer, context, port.server.port)
    assert session is None or not session.has_ticket
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        await asyncio.to_thread(session_after_an_answer, context, port.server.port)


def session_after_an_answer(context: ssl.SSLContext, port: int) -> ssl.SSLSession | None:
    with (
        socket.create_connection(("127.0.0.1", port), 20) as plain,
        context.wrap_socket(plain, server_hostname=NAME) as secured,
    ):
        secured.sendall(GET + b"\r\n")
        assert secured.recv(100).startswith(b"HTTP/1.1 200")
        return secured.session


def test_a_file_that_cannot_be_used_is_named_by_its_flag(tmp_path):
    shown = Authority(tmp_path, "ca").issue(NAME)
    shown.key.write_text("no key")
    with pytest.raises(ConfigError, match=r"--ssl-certfile .* and --ssl-keyfile"):
        Port(paths(shown))
