"""The files in deploy/: Kubernetes' schemas allow them, and what they run, ask for and show exists."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evenstep.service.backends.ray.actor_options import ActorPlacement

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
pytest.importorskip("jinja2", reason="Jinja2 is not installed")

REPOSITORY = Path(__file__).parent.parent
DEPLOY = REPOSITORY / "deploy"
render = runpy.run_path(str(DEPLOY / "render.py"))["render"]
VALUES = yaml.safe_load((DEPLOY / "values.yaml").read_text())
HOSTS, GPUS, PATIENCE = VALUES["hosts"], VALUES["gpus"], VALUES["patience"]
RELEASES = "1.29", "1.37"  # of Kubernetes; sidecars came with the first
ROLES_WITHOUT_NUMBER = 1  # the planner; the registry reserves no CPU

Manifests = dict[tuple[str, str], Any]
"""By kind, and name without that of the job."""

both = pytest.mark.parametrize("kuberay", [True, False], ids=["kuberay", "plain"])


@cache
def manifests(kuberay: bool) -> Manifests:
    found: Manifests = {}
    for each in yaml.safe_load_all(render({"kuberay": kuberay})):
        key = each["kind"], each["metadata"]["name"].removeprefix("pretrain").removeprefix("-")
        assert key not in found
        assert each["metadata"]["namespace"] == VALUES["namespace"]
        found[key] = each
    return found


def pods_of(given: Manifests) -> dict[str, Any]:
    """By role, pod templates."""
    found = {}
    for (kind, _), each in given.items():
        if kind in ("Job", "Deployment"):
            templates = [each["spec"]["template"]]
        elif kind == "RayCluster":
            groups = [each["spec"]["headGroupSpec"], *each["spec"]["workerGroupSpecs"]]
            templates = [group["template"] for group in groups]
        else:
            continue
        found.update({each["metadata"]["labels"]["evenstep-role"]: each for each in templates})
    return found


def containers_of(pod: Any) -> list[Any]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


MADE = manifests(True)
PODS = pods_of(MADE)
(SIDECAR,) = PODS["trainers"]["spec"]["initContainers"]
(TRAINER,) = PODS["trainers"]["spec"]["containers"]
(SERVICE,) = PODS["service"]["spec"]["containers"]
FILES = MADE["ConfigMap", "files"]["data"]


def words(container: Any) -> list[str]:
    assert container["command"] == ["bash", "-c"]
    (script,) = container["args"]
    assert script.startswith("exec ")
    return shlex.split(script)[1:]


def options(given: list[str]) -> dict[str, str]:
    return dict(re.fullmatch(r"--([\w-]+)=(.*)", word).groups() for word in given)  # type: ignore[union-attr]


def run_options() -> dict[str, Any]:
    """Of `evenstep service run`, as it understands them itself."""
    typer = pytest.importorskip("typer", reason="typer is not installed")
    from evenstep.cli.app import build

    evenstep, service, run, *given = words(SERVICE)
    assert evenstep == "evenstep"
    command: Any = typer.main.get_command(build())
    command = command.commands[service].commands[run]
    return dict(command.make_context("run", given).params)


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
    assert cluster["spec"]["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    head, *plain_roles = pods_of(plain)["head"]["spec"]["containers"]
    assert not plain_roles
    assert head["command"][:4] == ["ray", "start", "--head", "--num-cpus=0"]
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
                yield key.removesuffix("Ref").removesuffix("Key").capitalize(), value["name"]
            elif key == "persistentVolumeClaim":
                yield "PersistentVolumeClaim", value["claimName"]
            else:
                yield from references(value)


@both
def test_pods_wait_only_for_what_is_made_with_them_and_for_the_secrets(kuberay: bool) -> None:
    made = {(kind.lower(), each["metadata"]["name"]) for (kind, _), each in manifests(kuberay).items()}
    needed = {(kind.lower(), name) for kind, name in references(list(pods_of(manifests(kuberay)).values()))}
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
            each for each, has in labels.items() if budget["selector"]["matchLabels"].items() <= has.items()
        ]
        assert selected == [role]


# What runs


def test_the_service_is_started_by_a_command_that_exists() -> None:
    params = run_options()
    mounts = {each["name"]: each["mountPath"] for each in SERVICE["volumeMounts"]}
    folder, _, file = params["job"].rpartition("/")
    assert folder == mounts["files"] == str(params["placement"].parent)
    assert {file, params["placement"].name} <= set(FILES)
    assert str(params["plan_log"]).startswith(mounts["runs"])
    assert str(params["store"]).startswith(mounts["runs"])
    assert {"containerPort": params["port"], "name": "status"} in SERVICE["ports"]
    assert SERVICE["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "status"}
    for container in (SERVICE, SIDECAR, TRAINER):
        env = {each["name"]: each for each in container["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        key = {"secretKeyRef": {"name": "pretrain-token", "key": "auth_token"}}
        assert env["RAY_AUTH_TOKEN"]["valueFrom"] == env["EVENSTEP_STATUS_TOKEN"]["valueFrom"] == key


def test_the_cpus_that_are_lent_are_enough_for_all_roles() -> None:
    params = run_options()
    lent = options(words(SIDECAR)[2:-1])
    assert int(lent["num-cpus"]) <= int(SIDECAR["resources"]["requests"]["cpu"])
    roles = int(params["loaders"]) + params["constructors"] + ROLES_WITHOUT_NUMBER
    assert params["cpus"] * roles <= HOSTS * int(lent["num-cpus"])


def test_actors_are_placed_by_labels_that_nodes_have() -> None:
    params = run_options()
    given = json.loads(FILES[params["placement"].name])
    counts = {"loaders": int(params["loaders"]), "constructors": params["constructors"]}
    placement = ActorPlacement(given, **counts)
    labels = options(words(SIDECAR)[2:-1])["labels"]
    told = [labels.replace("$JOB_COMPLETION_INDEX", str(host)) for host in range(HOSTS)]
    nodes = [dict(label.split("=") for label in each.split(",")) for each in told]
    for kind, count in counts.items():
        for number in range(count):
            asked = placement.of(f"{kind.removesuffix('s')}-{number}")["label_selector"]
            fits = [n for n, node in enumerate(nodes) if asked.items() <= node.items()]
            assert fits == ([number] if kind == "constructors" else list(range(HOSTS)))


@both
def test_raylets_join_the_head_and_are_found_by_what_runs_beside_them(kuberay: bool) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    from ray.scripts.scripts import start

    known = {option for param in start.params for option in param.opts}
    pods = pods_of(manifests(kuberay))
    for role in ("service", "trainers"):
        raylet, beside = containers_of(pods[role])
        assert words(raylet)[:2] == ["ray", "start"]
        *given, block = words(raylet)[2:]
        assert options(given)["address"] == "pretrain-head-svc:6379"
        assert {*(f"--{name}" for name in options(given)), block} <= known
        assert raylet["volumeMounts"] == beside["volumeMounts"]
        paths = {each["mountPath"] for each in raylet["volumeMounts"]}
        assert {"/tmp/ray", "/dev/shm"} <= paths  # where Ray's processes meet
        assert pods[role]["spec"]["shareProcessNamespace"] is True
    for word in pods["head"]["spec"]["containers"][0].get("command", ["ray", "start"])[2:]:
        assert word.partition("=")[0] in known


def test_torchrun_starts_as_many_ranks_as_the_job_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.run import get_args_parser

    torchrun, *given = words(TRAINER)
    assert torchrun == "torchrun"
    parsed = get_args_parser().parse_args(
        [word.replace("$JOB_COMPLETION_INDEX", "0") for word in given]
    )
    job = job_of_the_config_map(tmp_path, monkeypatch)
    assert int(parsed.nnodes) * int(parsed.nproc_per_node) == len(job.tree) == HOSTS * GPUS
    assert run_options()["constructors"] <= job.tree.sizes["DP"]
    trainers = MADE["Job", "trainers"]["spec"]
    assert int(parsed.nnodes) == trainers["completions"] == trainers["parallelism"] == HOSTS
    assert trainers["completionMode"] == "Indexed"
    assert TRAINER["resources"]["limits"]["nvidia.com/gpu"] == parsed.nproc_per_node
    subdomain = trainers["template"]["spec"]["subdomain"]
    assert parsed.master_addr == f"pretrain-trainers-0.{subdomain}"
    service = MADE["Service", "trainers"]
    assert subdomain == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == trainers["template"]["metadata"]["labels"]
    assert parsed.training_script == "/job/train.py"


def job_of_the_config_map(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The job, with files of this machine in the place of the store."""
    import pyarrow
    import pyarrow.parquet

    for name in ("code", "web"):
        (folder / name).mkdir()
        table = pyarrow.table({"tokens": [[n] * (n % 90 + 1) for n in range(400)]})
        pyarrow.parquet.write_table(table, folder / name / "0.parquet")
    for each in TRAINER["env"]:
        if "value" in each:
            monkeypatch.setenv(each["name"], each["value"])
    monkeypatch.setenv("CORPUS", str(folder))
    (folder / "job.py").write_text(FILES["job.py"])
    return runpy.run_path(str(folder / "job.py"))["job"]


def test_the_job_of_the_manifest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import evenstep.service as es

    with es.start(job_of_the_config_map(tmp_path, monkeypatch), backend="local") as service:
        batches, step = next(service.client(DP=31))
        assert len(batches) == 4
        assert step.rank == 31


def test_other_values_are_used_and_unknown_ones_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("job = None\n\nx = 1\n")
    text = render({"hosts": 2, "job": "mine.py", "lent": {"cpu": "6"}, "monitoring": False}, tmp_path)
    made = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}
    assert made["ConfigMap", "pretrain-files"]["data"]["job.py"] == "job = None\n\nx = 1\n"
    trainers = made["Job", "pretrain-trainers"]["spec"]
    assert trainers["completions"] == 2
    requests = trainers["template"]["spec"]["initContainers"][0]["resources"]["requests"]
    assert requests == {"cpu": "6", "memory": VALUES["lent"]["memory"]}
    assert not {"PodMonitor", "PrometheusRule"} & {kind for kind, _ in made}
    with pytest.raises(SystemExit, match="no value host; values are kuberay, namespace"):
        render({"host": 2})
    with pytest.raises(SystemExit, match="job: there is no file .*other.py"):
        render({"job": "other.py"}, tmp_path)


# What is measured


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


# The image


def test_the_image_is_made_of_the_wheel_by_a_pinned_base_for_a_user_without_rights() -> None:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    lines = [line.split(None, 1) for line in text.splitlines() if line and line[0] != "#"]
    given = [(name, rest) for name, rest in lines]
    ((_, base),) = [each for each in given if each[0] == "FROM"]
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+(@sha256:[0-9a-f]{64})?", base)
    assert [rest for name, rest in given if name == "USER"] == [f"{VALUES['user']}:{VALUES['user']}"]
    ran = [rest for name, rest in given if name == "RUN"]
    assert any(f"useradd --uid {VALUES['user']} " in each for each in ran)
    copied = [rest.split() for name, rest in given if name == "COPY"]
    assert sorted(source for source, _ in copied) == ["dist/evenstep-*.whl", "locks/dev.txt"]
    assert not [name for name, _ in given if name == "ADD"]
    (install,) = [each for each in ran if "pip install" in each]
    assert "--no-cache-dir" in install
    assert all(target.rstrip("/") in install for _, target in copied)
    order = [name for name, _ in given]
    assert order.index("USER") > max(n for n, name in enumerate(order) if name == "RUN")
