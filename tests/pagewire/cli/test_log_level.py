"""`pagewire log-level` against a real admin server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import grpc
import pytest

from pagewire.cli.__main__ import main
from pagewire.cli.log_level import LogLevelConfig, set_log_level
from pagewire.kit.admin import AdminServicer
from pagewire.kit.errors import PagewireError
from pagewire.v1 import admin_pb2_grpc

LOGGER = "tests.log_level"


@pytest.fixture
async def target() -> AsyncIterator[str]:
    server = grpc.aio.server()
    admin_pb2_grpc.add_AdminServiceServicer_to_server(AdminServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def test_the_level_of_a_logger_changes_and_the_one_before_comes_back(target: str) -> None:
    logging.getLogger(LOGGER).setLevel("INFO")
    config = LogLevelConfig(target=target, logger=LOGGER)
    assert await set_log_level(config, "debug") == "info"
    assert logging.getLogger(LOGGER).isEnabledFor(logging.DEBUG)


async def test_an_unknown_logger_is_refused(target: str) -> None:
    with pytest.raises(PagewireError):
        await set_log_level(LogLevelConfig(target=target, logger="nobody.is.this"), "debug")


def test_nobody_there_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log-level", "debug", "--target", "127.0.0.1:1"]) == 1
    assert "no admin address" in capsys.readouterr().err


def test_a_word_that_is_no_level_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log-level", "loud"]) == 2
    assert "loud" in capsys.readouterr().err
