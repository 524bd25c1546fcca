"""The manifests of deploy/: Kubernetes' schemas allow them, in any order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployed import (
    DEPLOY,
    VALUES,
    both,
    containers_of,
    manifests,
    pods_of,
    render,
    run_options,
    yaml,
)

RELEASES = "1.29", "1.37"  # of Kubernetes; sidecars came with the first


# What Kubernetes says


@both
@pytest.mark.parametrize("release", RELEASES)
def test_the_schemas_of_kubernetes_allow_every_object(kuberay: bool, release: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="it is not installed")
    made = manifests(kuberay)
    own = [each for each in made.values() if "." not in each["apiVersion"].partition(".k8s.io")[0]]
    templates = [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": role}, "template": pod}
        for role, pod in pods_of(made).items()
    ]
    assert {kind for kind, _ in made} - {each["kind"] for each in own} == {
        "PodMonitor",
        "PrometheusRule",
        *(["RayCluster"] if kuberay else []),
    }
    for each in (*own, *templates):
        kubernetes.validate(each, release, strict=True)


# Whatever comes first


def references(given: Any) -> Iterator[tuple[str, str]]:
    """Kinds and names of what pods wait for."""
    if isinstance(given, list):
        for each in given:
            yield from references(each)
    elif isinstance(given, dict):
        assert "optional" not in given  # it would start without
        for key, value in given.items():
            if key in ("configMap", "secretRef", "secretKeyRef"):
                yield key.removesuffix("Ref").removesuffix("Key").lower(), value["name"]
            elif key == "persistentVolumeClaim":
                yield key.lower(), value["claimName"]
            else:
                yield from references(value)


@both
def test_pods_wait_only_for_what_is_made_with_them_and_for_the_secrets(kuberay: bool) -> None:
    made = {
        (kind.lower(), each["metadata"]["name"]) for (kind, _), each in manifests(kuberay).items()
    }
    needed = {
        (kind.lower(), name)
        for kind, name in references(list(pods_of(manifests(kuberay)).values()))
    }
    readme = (DEPLOY / "README.md").read_text()
    secrets = set(re.findall(r"create secret generic (\S+)", readme))
    assert needed - made == {("secret", name) for name in secrets}


# Who may do what


@both
def test_pods_are_reached_by_one_another_and_by_prometheus_alone(kuberay: bool) -> None:
    made = manifests(kuberay)
    policy = made["NetworkPolicy", ""]["spec"]
    everyone = policy["podSelector"]
    for pod in pods_of(made).values():
        assert everyone["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["policyTypes"] == ["Ingress"]
    peers, prometheus = policy["ingress"]
    assert peers == {"from": [{"podSelector": everyone}]}
    (source,) = prometheus["from"]
    assert source["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": VALUES["monitoring_namespace"]
    }
    monitor = made["PodMonitor", ""]["spec"]
    assert monitor["selector"] == everyone
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    named: dict[str, set[int]] = {}
    for pod in pods_of(made).values():
        ports = [port for each in containers_of(pod) for port in each.get("ports", ())]
        assert endpoint["port"] in {port["name"] for port in ports}
        for port in ports:
            named.setdefault(port["name"], set()).add(port["containerPort"])
    allowed = {each["port"] for each in prometheus["ports"]}
    assert allowed == named["metrics"] | named["status"]
    assert named["status"] == {run_options()["port"]}


def test_other_values_are_used_and_unknown_ones_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("job = None\n\nx = 1\n")
    text = render(
        {"hosts": 2, "job": "mine.py", "lent": {"cpu": "6"}, "monitoring": False}, tmp_path
    )
    made = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    assert made["ConfigMap", "pretrain-files"]["data"]["job.py"] == "job = None\n\nx = 1\n"
    trainers = made["Job", "pretrain-trainers"]["spec"]
    assert trainers["completions"] == 2
    requests = trainers["template"]["spec"]["initContainers"][0]["resources"]["requests"]
    assert requests == {"cpu": "6", "memory": VALUES["lent"]["memory"]}
    assert not {"PodMonitor", "PrometheusRule"} & {kind for kind, _ in made}
    with pytest.raises(SystemExit, match="no value host; values are kuberay, namespace"):
        render({"host": 2})
    with pytest.raises(SystemExit, match=r"job: there is no file .*other\.py"):
        render({"job": "other.py"}, tmp_path)
