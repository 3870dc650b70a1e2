from __future__ import annotations

import threading
from datetime import datetime

import pytest
from jinja2 import TemplateError

from tokenizer_svc.template_environment import render


def text(template: str, **variables: object) -> str:
    return render(template, variables, max_chars=100_000)


@pytest.mark.parametrize(
    ("template", "variables", "expected"),
    [
        ("{% for a in x %}\n  {{ a }}\n{% endfor %}", {"x": [1, 2]}, "  1\n  2\n"),
        ("  {% if x %}y{% endif %}", {"x": 1}, "y"),
        ("{% for a in x %}{{ loop.index }}{% if loop.last %}!{% endif %}{% endfor %}",
         {"x": "ab"}, "12!"),
        ("{% for a in x %}{{ loop.length }}{{ loop.revindex0 }}{% endfor %}",
         {"x": [1, 2]}, "2120"),
        ("{% for a in x if a %}{{ a }}{% break %}{% endfor %}", {"x": [0, 3, 4]}, "3"),
        ("{% for a in x %}{% continue %}{{ a }}{% endfor %}", {"x": [1]}, ""),
        ("{% for a in nothing %}{% else %}none{% endfor %}", {}, "none"),
        ("{% for m in x recursive %}{{ m.n }}{{ loop(m.c) if m.c }}{% endfor %}",
         {"x": [{"n": 1, "c": [{"n": 2}]}]}, "12"),
        ("{% generation %}a{{ x }}{% endgeneration %}b", {"x": 1}, "a1b"),
        ("{{ x | tojson }}", {"x": {"b": "\u00e9<>&'", "a": 1}},
         "{\"b\": \"\u00e9<>&'\", \"a\": 1}"),
        ("{{ x | tojson(indent=2) }}", {"x": [1]}, "[\n  1\n]"),
        ("{{ 'a' ~ 1 ~ none }}", {}, "a1None"),
        ("{{ x[::-1] | join(',') }}", {"x": ["a", "b"]}, "b,a"),
        ("{{ x | map(attribute='n') | join }}", {"x": [{"n": 1}]}, "1"),
        ("{{ x | join('-', attribute='n') }}", {"x": [{"n": 1}, {"n": 2}]}, "1-2"),
        ("{{ 'aXbX' | replace('X', '-') }}", {}, "a-b-"),
        ("{{ 'a\nb\n\nc' | indent(2) }}", {}, "a\n  b\n\n  c"),
        ("{{ 'a\nb' | indent(2, true) }}", {}, "  a\n  b"),
        ("{{ '%s-%03d' | format('a', 7) }}", {}, "a-007"),
        ("{{ '%s' % 'a' }}{{ '{:>3}'.format(1) }}", {}, "a  1"),
        ("{{ 'ab' | center(6) }}|", {}, "  ab  |"),
        ("{{ '' if x is string else 'no' }}{{ x is mapping }}", {"x": 1}, "noFalse"),
        ("{% set ns = namespace(n=0) %}{% for a in x %}{% set ns.n = ns.n + a %}{% endfor %}"
         "{{ ns.n }}", {"x": [1, 2]}, "3"),
        ("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(1) }}{{ m(a=2) }}", {}, "<1><2>"),
    ],
)  # fmt: skip
def test_templates_render(template: str, variables: dict[str, object], expected: str) -> None:
    assert text(template, **variables) == expected


def test_the_date_can_be_asked_for() -> None:
    assert text("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_a_template_can_refuse() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        text("{{ raise_exception('roles must alternate') }}")


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in s %}{% for b in s %}{% endfor %}{% endfor %}",
        "{% for a in range(90000) %}aaaaaaaaaa{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}"
        "{% endfor %}",
        "{% set ns = namespace(s='a') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}",
        "{{ 'a' * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ 'a'.center(999999999) }}",
        "{{ 'a' | center(999999999) }}",
        "{{ 'a' | indent(999999999, true) }}",
        "{{ s.replace('a', s) }}",
        "{{ s | replace('a', s) }}",
        "{{ s.join(s) }}",
        "{{ s | join(s) }}",
        "{{ ([s] * 100) | join }}",
        "{{ ''.__class__.x }}",
        "{{ s.__init__.__globals__ }}",
        "{{ x.append(1) }}",
        "{{ x.clear() }}",
        "{% include '/etc/passwd' %}",
        "{{ undefined_thing.x }}",
        "{% if %}",
    ],
)
def test_what_is_too_much_or_not_allowed_is_refused(template: str) -> None:
    with pytest.raises((TemplateError, TypeError)):
        text(template, s="a" * 60_000, x=[1])


def test_threads_have_budgets_of_their_own() -> None:
    results: list[str] = []
    template = "{% for a in range(50000) %}{% endfor %}ok"
    threads = [threading.Thread(target=lambda: results.append(text(template))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["ok"] * 4
