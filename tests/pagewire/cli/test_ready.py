"""Tests of the line that says where the stack answers."""

from __future__ import annotations

import shlex

import pytest

from pagewire.cli.addresses import Addresses
from pagewire.cli.ready import parse_ready_line, ready_line

ADDRESSES = Addresses("127.0.0.1:8000", "127.0.0.1:50050", {}, {})


@pytest.mark.parametrize("wants_key", [False, True])
def test_the_curl_line_sends_a_key_where_one_is_wanted(wants_key: bool) -> None:
    line = ready_line(ADDRESSES, "it's", wants_key=wants_key)
    assert parse_ready_line(line) == ("http://127.0.0.1:8000", "127.0.0.1:50050")
    words = shlex.split(line.partition("Try: ")[2])
    assert ("authorization: Bearer KEY" in words) == wants_key
    assert '"model": "it\'s"' in words[-1]
