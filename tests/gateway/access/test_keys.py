"""Reading keys, and whose a secret is."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.access.client_limits import ClientLimits
from gateway.access.keys import KeyRing, parse_keys, read_key_file


def test_a_secret_belongs_to_the_name_in_front_of_it() -> None:
    ring = KeyRing(parse_keys(["team-a=one", "team-b=t=w=o==", "plain"]))
    assert ring.client_of("one") == "team-a"
    assert ring.client_of("t=w=o==") == "team-b"
    assert ring.client_of("plain") == "key-3"
    for other in ("", "two", "One", "one ", "team-b=one", "é", "\ud800", "x" * 10**6):
        assert ring.client_of(other) is None


def test_a_whole_entry_is_a_secret_so_that_one_setting_serves_both_sides() -> None:
    ring = KeyRing(parse_keys(["team-a=one", "plain"]))
    assert ring.client_of("team-a=one") == "team-a"
    assert ring.client_of("key-2=plain") is None
    with pytest.raises(ValueError, match="team-a and b have the same secret"):
        KeyRing(parse_keys(["team-a=one", "b=team-a=one"]))


def test_a_name_may_have_two_secrets_for_the_time_of_a_change() -> None:
    ring = KeyRing(parse_keys(["a=old", "a=new"]))
    assert ring.client_of("old") == ring.client_of("new") == "a"


@pytest.mark.parametrize("entry", ["a=", "", "=", "c2VjcmV0==", "a=é", "a=b\nc", "a=" + "x" * 2000])
def test_unfit_keys_are_refused_without_showing_them(entry: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_keys(["ok=1", entry])
    assert len(entry) < 2 or entry not in str(caught.value)


def test_two_clients_with_one_secret_are_refused() -> None:
    with pytest.raises(ValueError, match="a and b have the same secret"):
        KeyRing(parse_keys(["a=1", "b=1"]))


def test_a_file_has_a_key_a_line_and_limits_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(
        "# our teams\n\nteam-a=s,1  requests_per_minute=60 concurrent_requests=none\n"
        "  team-a=s2\nteam-b=s3\n"
    )
    ring = KeyRing(read_key_file(path))
    assert ring.client_of("s,1") == ring.client_of("s2") == "team-a"
    default = ClientLimits(concurrent_requests=4)
    assert ring.limits(default) == {
        "team-a": ClientLimits(requests_per_minute=60, concurrent_requests=None),
        "team-b": default,
    }


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "has no key"),
        ("a=1\nsecret-without-name\n", "line 2: must be NAME=SECRET"),
        ("a=1 requests=3", "line 1: limits are requests_per_minute"),
        ("a=1 requests_per_minute=x", "line 1: limits are"),
        ("a=1 requests_per_minute=0", "line 1: .*at least 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_its_line(
    tmp_path: Path, text: str, rule: str
) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(ValueError, match=rule) as caught:
        read_key_file(path)
    assert "secret-without-name" not in str(caught.value)
