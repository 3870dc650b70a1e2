"""DNS targets become addresses."""

from __future__ import annotations

import asyncio
import socket

import pytest

from pagewire.kit.dns import is_dns_target, resolve


@pytest.mark.parametrize("target", ["dns:///localhost:50052", "dns:localhost:50052"])
async def test_a_name_becomes_its_addresses(target):
    assert is_dns_target(target)
    assert "127.0.0.1:50052" in await resolve(target)


async def test_ipv6_addresses_get_brackets_and_each_comes_once(monkeypatch):
    async def getaddrinfo(host, port, **_):
        assert (host, port) == ("name", 5)
        six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 5, 0, 0))
        four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 5))
        return [six, four, four]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    assert await resolve("dns:///name:5") == ["[::1]:5", "10.0.0.1:5"]


@pytest.mark.parametrize("name", ["no-such-name.invalid", "a..b", "x" * 64])
async def test_a_name_that_does_not_or_cannot_exist_is_an_os_error(name):
    with pytest.raises(OSError):
        await resolve(f"dns:///{name}:1")


@pytest.mark.parametrize("target", ["localhost:1", "unix:/path", "10.0.0.1:50052"])
def test_others_are_no_names(target):
    assert not is_dns_target(target)
