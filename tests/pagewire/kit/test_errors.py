"""Exceptions become statuses and come back as what they were."""

import grpc
import pytest
from google.rpc import status_pb2

from pagewire.kit.errors import (
    DETAILS_KEY,
    NOT_BEGUN_HEADER,
    DeadlineExceededError,
    InternalError,
    InvalidRequestError,
    NotBegunError,
    NotFoundError,
    PagewireError,
    QueueFullError,
    ServiceUnavailableError,
    from_rpc_error,
    to_rpc_status,
)

from .echo_service import handler_of, start_echo


def foreign(code: grpc.StatusCode, details: str, *trailers: tuple[str, bytes]) -> PagewireError:
    metadata = grpc.aio.Metadata(*trailers)
    return from_rpc_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details))


async def test_an_error_comes_through_a_call_with_all_it_holds():
    sent = QueueFullError(
        "the queue is full", reason="TOO_MANY", metadata={"limit": "7"}, retry_after_s=0.25
    )

    async def act(context):
        raise sent

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.answer("unary_unary")
    received = from_rpc_error(caught.value)
    assert type(received) is QueueFullError
    assert vars(received) == vars(sent)
    assert dict(caught.value.trailing_metadata())["grpc-retry-pushback-ms"] == "250"


@pytest.mark.parametrize(("kind", "says"), [(NotBegunError, "1"), (ServiceUnavailableError, None)])
async def test_only_what_was_not_begun_says_so(kind, says):
    async def act(context):
        raise kind("later")

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.answer("unary_unary")
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert dict(caught.value.trailing_metadata()).get(NOT_BEGUN_HEADER) == says


async def test_the_wrong_field_comes_through_a_call():
    async def act(context):
        raise InvalidRequestError("temperature must be positive", field="temperature")

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.answer("unary_unary")
    assert from_rpc_error(caught.value).field == "temperature"


async def test_a_message_may_hold_any_text():
    async def act(context):
        raise InvalidRequestError("größer\n\x00 🙂", metadata={"k": "ü\n"})

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.answer("unary_unary")
    received = from_rpc_error(caught.value)
    assert (received.message, received.metadata) == ("größer\n\x00 🙂", {"k": "ü\n"})


async def test_a_very_long_message_still_fits_the_trailers():
    async def act(context):
        raise NotFoundError("m" * 100_000, metadata={str(i): "v" * 10_000 for i in range(100)})

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.answer("unary_unary")
    received = from_rpc_error(caught.value)
    assert type(received) is NotFoundError
    assert received.message.startswith("mmm")


async def test_a_message_beyond_the_limit_is_the_callers_mistake():
    async def act(context):
        return b""

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await echo.answer("unary_unary", b"x" * 100_000)
    received = from_rpc_error(caught.value)
    assert isinstance(received, InvalidRequestError)
    assert received.reason == "MESSAGE_TOO_LARGE"


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (grpc.StatusCode.UNAVAILABLE, ServiceUnavailableError),
        (grpc.StatusCode.CANCELLED, ServiceUnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineExceededError),
        (grpc.StatusCode.INTERNAL, InternalError),
        (grpc.StatusCode.UNKNOWN, InternalError),
        (grpc.StatusCode.DATA_LOSS, InternalError),
    ],
)
def test_the_text_of_a_foreign_status_that_may_hold_internals_is_not_passed_on(code, cls):
    error = foreign(code, "Unexpected <class 'KeyError'> from ipv4:10.0.0.7:50051")
    assert type(error) is cls
    assert "10.0.0.7" not in error.message
    assert "KeyError" not in error.message


def test_the_text_of_a_foreign_rejection_is_passed_on():
    error = foreign(grpc.StatusCode.INVALID_ARGUMENT, "top_k is too large")
    assert (type(error), error.message) == (InvalidRequestError, "top_k is too large")


def test_details_that_cannot_be_read_are_as_good_as_none():
    assert isinstance(
        foreign(grpc.StatusCode.UNAVAILABLE, "x", (DETAILS_KEY, b"\xff\xff")),
        ServiceUnavailableError,
    )


def test_details_of_another_domain_are_not_taken_for_ours():
    status = to_rpc_status(NotFoundError("x", reason="OURS"))
    other = status_pb2.Status.FromString(
        status.SerializeToString().replace(b"pagewire", b"elsewher")
    )
    error = foreign(
        grpc.StatusCode.NOT_FOUND, "no such thing", (DETAILS_KEY, other.SerializeToString())
    )
    assert error.reason == "NOT_FOUND"
