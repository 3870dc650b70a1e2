"""Alert rules, scrape configurations and dashboards are what Prometheus takes them for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.deploy.monitoring import (
    DASHBOARDS,
    PROMETHEUS,
    adapter_queries,
    dashboard_queries,
    promtool,
    rules,
    selectors,
)


def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "rules.yml")
    promtool("test", "rules", "rules_test.yml")


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((PROMETHEUS / "rules_test.yml").read_text())["tests"]
    cases = [case for each in tests for case in each["alert_rule_test"]]
    fired = {case["alertname"] for case in cases if case.get("exp_alerts")}
    # A stall is a bug, and its test shows that no stall is no alert.
    assert {rule["alert"] for rule in rules()} - fired == {"PagewireSchedulerStalled"}


@pytest.mark.parametrize("name", ["prometheus.yml", "compose.yml"])
def test_scrape_configurations_are_valid_and_have_all_jobs(name: str) -> None:
    promtool("check", "config", name)
    jobs = yaml.safe_load((PROMETHEUS / name).read_text())["scrape_configs"]
    services = ("gateway", "tokenizer", "scheduler", "worker")
    assert [job["job_name"] for job in jobs] == [f"pagewire-{each}" for each in services]


def test_queries_of_dashboards_and_autoscalers_are_valid(tmp_path: Path) -> None:
    asked = [*dashboard_queries(), *adapter_queries().values()]
    queries = [{"record": f"panel:{i}", "expr": q} for i, q in enumerate(asked)]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": queries}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", str(path))


@pytest.mark.parametrize(
    ("waiting", "engines"),
    [([12, 0, 30, 6], 7.0), ([0, 0, 0, 0], 0.0), ([1, 0], 2.0625)],
    ids=["one more for each 16", "none waits", "none less while one waits"],
)
def test_what_waits_asks_for_engines(tmp_path: Path, waiting: list[int], engines: float) -> None:
    query = adapter_queries()["pagewire_engines_for_waiting"]
    recorded = {"name": "adapter", "rules": [{"record": "engines", "expr": query}]}
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [recorded]}))
    name = "pagewire:num_requests_waiting"
    series = [
        {
            "series": f'{name}{{job="pagewire-{job}",namespace="{namespace}",engine="{engine}"}}',
            "values": f"{number}x5",
        }
        for job, namespace in (
            ("scheduler", "pagewire"),
            ("gateway", "pagewire"),  # each tells of all engines
            ("scheduler", "other"),
        )
        for engine, number in enumerate(waiting)
    ]
    samples = [{"labels": "engines", "value": engines}]
    expected = {"eval_time": "3m", "expr": "engines", "exp_samples": samples}
    case = {"interval": "1m", "input_series": series, "promql_expr_test": [expected]}
    test = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [case]}
    (tmp_path / "test.yml").write_text(json.dumps(test))
    promtool("test", "rules", str(tmp_path / "test.yml"))


def test_every_query_names_the_services_that_it_asks() -> None:
    alerts = [rule["expr"] for rule in rules()]
    for query in [*dashboard_queries(), *adapter_queries().values(), *alerts]:
        found = list(selectors(query))
        assert found, query
        assert all(jobs for _, jobs in found), query


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_can_be_imported(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert all(panel["datasource"] == source and panel["description"] for panel in panels)
    assert dashboard["templating"]["list"][0]["name"] == "datasource"
