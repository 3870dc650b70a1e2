from __future__ import annotations

import pytest

from tests.parity import NearTieWarning, ParityReport


def test_equal_outputs_pass() -> None:
    report = ParityReport()
    report.compare("a", [1, 2], [1, 2], lambda _: 0.0)
    report.check()


def test_a_divergence_that_is_no_tie_fails() -> None:
    report = ParityReport()
    report.compare("a", [1, 2, 3], [1, 9, 3], lambda position: 0.5 if position == 1 else 0.0)
    with pytest.raises(AssertionError):
        report.check()


def test_a_shorter_output_is_a_divergence_at_its_end() -> None:
    report = ParityReport()
    report.compare("a", [1], [1, 2], lambda _: 1.0)
    assert report.divergences[0].position == 1


def test_one_tie_in_a_hundred_requests_is_reported() -> None:
    report = ParityReport()
    report.compare("tie", [1], [2], lambda _: 1e-5)
    for index in range(99):
        report.compare(str(index), [1], [1], lambda _: 1.0)
    with pytest.warns(NearTieWarning, match="tie"):
        report.check()


def test_more_ties_fail() -> None:
    report = ParityReport()
    report.compare("tie", [1], [2], lambda _: 1e-5)
    for index in range(98):
        report.compare(str(index), [1], [1], lambda _: 1.0)
    with pytest.raises(AssertionError):
        report.check()


def test_nothing_compared_is_no_success() -> None:
    with pytest.raises(AssertionError):
        ParityReport().check()
