"""The manifests of deploy/: Kubernetes' schemas allow them, in any order, with no right they do not
need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deployed import (
    DEPLOY,
    FILES,
    HOSTS,
    MADE,
    PATIENCE,
    REPOSITORY,
    VALUES,
    both,
    containers_of,
    manifests,
    options,
    pods_of,
    render,
    run_options,
    words,
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


def test_the_cluster_of_kuberay_is_what_the_plain_objects_stand_for() -> None:
    plain = manifests(False)
    cluster = MADE["RayCluster", ""]
    assert cluster["apiVersion"] == "ray.io/v1"
    assert cluster["spec"]["authOptions"] == {"mode": "token", "secretName": "pretrain-token"}
    locked = (REPOSITORY / "locks" / "dev.txt").read_text()
    assert f"\nray=={cluster['spec']['rayVersion']} " in locked
    known = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
    assert set(cluster["spec"]) == known
    head, (spare,) = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert set(spare) == {*head, "groupName", "replicas", "minReplicas", "maxReplicas"}
    assert set(head) == {"rayStartParams", "template"}
    assert spare["minReplicas"] <= spare["replicas"] <= spare["maxReplicas"]
    (started,) = pods_of(plain)["head"]["spec"]["containers"]
    assert started["command"][:4] == ["ray", "start", "--head", "--num-cpus=0"]
    assert plain["Service", "head-svc"]["spec"]["selector"].items() <= (
        pods_of(plain)["head"]["metadata"]["labels"].items()
    )
    heads = {("RayCluster", ""), ("Deployment", "head"), ("Service", "head-svc")}
    rest = [{key: each for key, each in of.items() if key not in heads} for of in (MADE, plain)]
    assert rest[0] == rest[1]


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


def test_all_wait_for_one_another_as_long_as_a_cluster_needs_and_begin_again() -> None:
    assert run_options()["patience"] == PATIENCE >= 1800
    assert run_options()["resume"] == "auto"
    assert 'patience = float(os.environ["PATIENCE"])' in FILES["train.py"]
    for role, pods in {"service": 1, "trainers": HOSTS}.items():
        job = MADE["Job", role]["spec"]
        assert job["backoffLimit"] == pods * VALUES["restarts"] > 0
        (rule,) = job["podFailurePolicy"]["rules"]  # Kubernetes: only with restartPolicy Never
        assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        (raylet,) = job["template"]["spec"]["initContainers"]
        assert raylet["restartPolicy"] == "Always"  # a sidecar, for whose end nobody waits
        probe = raylet["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] == PATIENCE
        told = options([word for word in words(raylet) if word.startswith("--") and "=" in word])
        assert int(told["dashboard-agent-listen-port"]) == probe["httpGet"]["port"]
        env = {each["name"]: each.get("value") for each in containers_of(job["template"])[1]["env"]}
        assert float(env["PATIENCE"]) == PATIENCE
        assert env["JOB_NAME"] == run_options()["name"]


# Who may do what


@both
def test_no_pod_may_do_more_than_it_needs(kuberay: bool) -> None:
    for role, pod in pods_of(manifests(kuberay)).items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, role
        secure = spec["securityContext"]
        assert secure["runAsNonRoot"] is True
        assert secure["runAsUser"] == secure["fsGroup"] > 0
        assert secure["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in containers_of(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            }
            asked, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert asked["memory"] == limits["memory"]
            assert {each["name"] for each in container["volumeMounts"]} == {
                each["name"] for each in spec["volumes"]
            }


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


@both
def test_a_drained_node_waits_for_the_pods_without_which_all_would_begin_again(
    kuberay: bool,
) -> None:
    made = manifests(kuberay)
    counts = {"head": 1, "service": 1, "trainers": HOSTS}
    labels = {role: pod["metadata"]["labels"] for role, pod in pods_of(made).items()}
    assert {name for kind, name in made if kind == "PodDisruptionBudget"} == set(counts)
    for role, count in counts.items():
        budget = made["PodDisruptionBudget", role]["spec"]
        assert budget["minAvailable"] == count
        selected = [
            each
            for each, has in labels.items()
            if budget["selector"]["matchLabels"].items() <= has.items()
        ]
        assert selected == [role]


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
