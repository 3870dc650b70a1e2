"""Panics of Rust libraries become errors."""

from __future__ import annotations

import pytest

from pagewire.kit.errors import InternalError, from_rpc_error
from pagewire.kit.rust_panics import RustPanicError, RustPanicsRaised

from .echo_service import handler_of, start_echo
from .test_interceptors import status_of

PanicException = type("PanicException", (BaseException,), {})


def test_a_panic_is_an_error() -> None:
    with pytest.raises(RustPanicError, match="slice index"), RustPanicsRaised():
        raise PanicException("slice index starts at 1 but ends at 0")


@pytest.mark.parametrize("other", [KeyboardInterrupt, ValueError, GeneratorExit])
def test_anything_else_is_left_alone(other: type[BaseException]) -> None:
    with pytest.raises(other), RustPanicsRaised():
        raise other


async def test_a_panic_in_a_handler_is_an_internal_error() -> None:
    async def act(context: object) -> bytes:
        raise PanicException("secret-path")

    async with start_echo(unary_unary=handler_of("unary_unary", act)) as echo:
        error = from_rpc_error(await status_of(echo, "unary_unary"))
    assert type(error) is InternalError
    assert "secret" not in error.message
