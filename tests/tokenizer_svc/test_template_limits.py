from __future__ import annotations

import pytest

from tokenizer_svc.template_limits import TemplateLimitError, budget, check_format, using


def test_rounds_are_counted_over_all_loops() -> None:
    with using(max_chars=10) as limits:
        assert list(limits.count("abc")) == ["a", "b", "c"]
        list(limits.count("de"))
        assert limits.num_rounds == 5


def test_too_many_rounds_are_refused() -> None:
    with using(max_chars=10) as limits, pytest.raises(TemplateLimitError, match="rounds"):
        for _ in limits.count(range(2_000_000)):
            pass


def test_time_past_the_deadline_is_refused() -> None:
    with using(max_chars=10) as limits:
        limits.deadline_s = 0.0
        with pytest.raises(TemplateLimitError, match="takes longer"):
            list(limits.count(range(5000)))


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [
        ("*", "ab", 6),
        ("*", 6, [1, 2]),
        ("*", 1 << 40, 1 << 40),
        ("**", 10, 100),
        ("**", 1 << 20, 2),
        ("%", "%99999999d", 1),
    ],
)
def test_large_results_are_refused(operator: str, left: object, right: object) -> None:
    with using(max_chars=10) as limits, pytest.raises(TemplateLimitError):
        limits.check_operator(operator, left, right)


@pytest.mark.parametrize(
    ("operator", "left", "right"),
    [("*", "ab", 5), ("*", 3, 4), ("**", 2, 10), ("%", "%5d", 1), ("%", 7, 2), ("*", 2.5, 3)],
)
def test_small_results_are_let_through(operator: str, left: object, right: object) -> None:
    with using(max_chars=10) as limits:
        limits.check_operator(operator, left, right)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("replace", "aaa", ("a", "xxxx")),
        ("join", "-----", (["a", "b", "c"],)),
        ("center", "", (10**9,)),
    ],
)
def test_methods_that_blow_up_text_are_refused(
    name: str, text: str, arguments: tuple[object, ...]
) -> None:
    with using(max_chars=10) as limits, pytest.raises(TemplateLimitError):
        limits.check_method(name, text, arguments)


@pytest.mark.parametrize("pattern", ["{:>999999}", "%*d", "%.999999f"])
def test_wide_formats_are_refused(pattern: str) -> None:
    with pytest.raises(TemplateLimitError, match="width"):
        check_format(pattern)


def test_budgets_nest() -> None:
    with using(max_chars=1) as outer:
        with using(max_chars=2):
            assert budget().max_chars == 2
        assert budget() is outer
