"""The alerts and the dashboard of deploy/ ask for metrics that exist."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deployed import DEPLOY, MADE, run_options


def exported() -> dict[str, set[str]]:
    """By name in Prometheus, the labels of each metric."""
    pytest.importorskip("ray", reason="ray is not installed")
    from evenstep.service.registry.metrics import MetricsExporter

    metrics = [each.info for each in vars(MetricsExporter("a")).values() if hasattr(each, "info")]
    return {f"ray_{info['name']}": {*info["tag_keys"], "le"} for info in metrics}


def metrics_in(expression: str, more_labels: str = "") -> set[str]:
    """The metrics that are asked for; they and their labels exist."""
    tags = exported()
    names = re.findall(r"ray_evenstep_\w+", expression)
    known = {re.sub(r"(?<=wait_seconds)_(sum|count|bucket)$", "", name) for name in names}
    assert known <= set(tags), expression
    used = re.findall(r"(\w+)=~?\"", expression) + re.findall(r"\w+", more_labels)
    for listed in re.findall(r"by \(([\w, ]+)\)", expression):
        used += listed.split(", ")
    assert all(set(used) <= tags[name] for name in known), expression
    return known


def test_alerts_ask_for_metrics_that_exist() -> None:
    (group,) = MADE["PrometheusRule", ""]["spec"]["groups"]
    asked = {rule["alert"]: metrics_in(rule["expr"]) for rule in group["rules"]}
    assert asked == {
        "EvenstepJobFailed": set(),
        "EvenstepRoleRestarts": {"ray_evenstep_restarts_total"},
        "EvenstepTrainersWait": {"ray_evenstep_exposed_seconds"},
        "EvenstepNoSteps": {"ray_evenstep_wait_seconds"},
        "EvenstepStoreFails": {"ray_evenstep_store_failing"},
    }
    failed, *of_evenstep = [rule["expr"] for rule in group["rules"]]
    assert failed.startswith("kube_job_failed{")  # of kube-state-metrics
    names = re.search(r'job_name=~"([^"]+)"', failed)
    assert names is not None
    for role in ("service", "trainers"):
        assert re.fullmatch(names[1], MADE["Job", role]["metadata"]["name"])
    assert all(f'{{job="{run_options()["name"]}"}}' in each for each in of_evenstep)
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"][-1] == rule["annotations"]["action"][-1] == "."


def test_a_store_that_cannot_be_written_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = pytest.importorskip("ray.util.metrics", reason="ray is not installed")
    from evenstep.service.registry.metrics import MetricsExporter

    said: list[Any] = []
    monkeypatch.setattr(
        metrics.Gauge,
        "set",
        lambda self, value, tags=None: said.append((self.info["name"], value)),
    )
    exporter = MetricsExporter("a")
    status: dict[str, Any] = {"silent": [], "standbys": [], "steps": {"steps": 0}}
    status |= {"loaders": [], "restarts": [], "bytes": {}}
    for error in (None, "no space", None):
        exporter.export({**status, "planner": {"store_error": error}})
    exporter.export({**status, "planner": {}})  # it does not answer, or has no store
    assert [value for name, value in said if name == "evenstep_store_failing"] == [0, 1, 0, 0]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    panels = json.loads((DEPLOY / "grafana" / "service.json").read_text())["panels"]
    asked = set()
    for target in (target for panel in panels for target in panel["targets"]):
        legend = " ".join(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        asked |= metrics_in(target["expr"], legend)
    assert asked == set(exported())  # each figure is shown
    boxes = [tuple(panel["gridPos"][side] for side in "xywh") for panel in panels]
    cells = [(x + i, y + j) for x, y, w, h in boxes for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells))  # none covers another
