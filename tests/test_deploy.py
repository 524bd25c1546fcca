"""The files in deploy/: they parse, and what they run and show exists."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from evenstep.service.backends.ray.actor_options import ActorPlacement

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

DEPLOY = Path(__file__).parent.parent / "deploy"
ROLES_WITHOUT_NUMBER = 1  # the planner; the registry reserves no CPU


def documents(name: str) -> dict[str, Any]:
    """By kind."""
    found = yaml.safe_load_all((DEPLOY / "kuberay" / name).read_text())
    return {document["kind"]: document for document in found}


CLUSTER = documents("cluster.yaml")["RayCluster"]
HEAD = CLUSTER["spec"]["headGroupSpec"]
JOB = documents("job.yaml")
TRAINERS = documents("trainers.yaml")
PODS = TRAINERS["Job"]["spec"]["template"]["spec"]
HOSTS = TRAINERS["Job"]["spec"]["completions"]
(SIDECAR,) = PODS["initContainers"]
(TRAINER,) = PODS["containers"]


def words(container: Any) -> list[str]:
    assert container["command"] == ["bash", "-c"]
    (script,) = container["args"]
    assert script.startswith("exec ")
    return shlex.split(script)[1:]


def options(given: list[str]) -> dict[str, str]:
    return dict(re.fullmatch(r"--([\w-]+)=(.*)", word).groups() for word in given)  # type: ignore[union-attr]


def run_options() -> dict[str, Any]:
    """Of `evenstep service run`, as it understands them itself."""
    import typer

    from evenstep.cli.app import build

    evenstep, service, run, *given = shlex.split(JOB["RayJob"]["spec"]["entrypoint"])
    assert evenstep == "evenstep"
    command: Any = typer.main.get_command(build())
    command = command.commands[service].commands[run]
    return dict(command.make_context("run", given).params)


def test_the_service_is_started_by_a_command_that_exists() -> None:
    pytest.importorskip("typer", reason="typer is not installed")
    params = run_options()
    (head,) = HEAD["template"]["spec"]["containers"]
    mounts = {each["name"]: each["mountPath"] for each in head["volumeMounts"]}
    folder, _, file = params["job"].rpartition("/")
    assert folder == mounts["jobs"]
    assert file in JOB["ConfigMap"]["data"]
    (jobs,) = (v for v in HEAD["template"]["spec"]["volumes"] if "configMap" in v)
    assert jobs["configMap"]["name"] == JOB["ConfigMap"]["metadata"]["name"]
    assert str(params["plan_log"]).startswith(mounts["runs"])
    assert str(params["store"]).startswith(mounts["runs"])
    assert str(params["placement"].parent) == mounts["jobs"]
    assert {"containerPort": params["port"], "name": "status"} in head["ports"]
    assert JOB["RayJob"]["spec"]["clusterSelector"] == {
        "ray.io/cluster": CLUSTER["metadata"]["name"]
    }


def test_the_cpus_that_are_lent_are_enough_for_all_roles() -> None:
    params = run_options()
    lent = options(words(SIDECAR)[2:-1])
    assert words(SIDECAR)[:2] == ["ray", "start"]
    assert int(lent["num-cpus"]) <= int(SIDECAR["resources"]["requests"]["cpu"])
    assert HEAD["rayStartParams"] == {"num-cpus": "0"}
    roles = int(params["loaders"]) + params["constructors"] + ROLES_WITHOUT_NUMBER
    assert params["cpus"] * roles <= HOSTS * int(lent["num-cpus"])


def test_actors_are_placed_by_labels_that_nodes_have() -> None:
    params = run_options()
    given = json.loads(JOB["ConfigMap"]["data"][params["placement"].name])
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


def test_raylets_beside_trainers_join_the_cluster_and_are_found_by_trainers() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    assert SIDECAR["restartPolicy"] == "Always"  # else the trainers would wait for its end
    *given, block = words(SIDECAR)[2:]
    assert options(given)["address"] == f"{CLUSTER['metadata']['name']}-head-svc:6379"
    from ray.scripts.scripts import start

    known = {option for param in start.params for option in param.opts}
    assert {*(f"--{name}" for name in options(given)), block} <= known
    both = [
        {each["name"]: each["mountPath"] for each in c["volumeMounts"]} for c in (SIDECAR, TRAINER)
    ]
    assert both[0] == both[1]
    assert {"/tmp/ray", "/dev/shm"} <= set(both[0].values())  # where Ray's processes meet
    assert set(both[0]) == {volume["name"] for volume in PODS["volumes"]}


def test_torchrun_starts_as_many_ranks_as_the_job_has(tmp_path: Path, monkeypatch: Any) -> None:
    from torch.distributed.run import get_args_parser

    torchrun, *given = words(TRAINER)
    assert torchrun == "torchrun"
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
    parsed = get_args_parser().parse_args(
        [word.replace("$JOB_COMPLETION_INDEX", "0") for word in given]
    )
    job = job_of_the_config_map(tmp_path)
    ranks = int(parsed.nnodes) * int(parsed.nproc_per_node)
    assert ranks == len(job.tree)
    assert run_options()["constructors"] <= job.tree.sizes["DP"]
    assert int(parsed.nnodes) == HOSTS
    assert TRAINER["resources"]["limits"]["nvidia.com/gpu"] == parsed.nproc_per_node
    assert parsed.master_addr == f"{TRAINERS['Job']['metadata']['name']}-0.{PODS['subdomain']}"
    assert PODS["subdomain"] == TRAINERS["Service"]["metadata"]["name"]


def job_of_the_config_map(folder: Path) -> Any:
    """The job, with files of this machine in the place of the store."""
    import pyarrow
    import pyarrow.parquet

    for name in ("code", "web"):
        (folder / name).mkdir()
        table = pyarrow.table({"tokens": [[n] * (n % 90 + 1) for n in range(400)]})
        pyarrow.parquet.write_table(table, folder / name / "0.parquet")
    text = JOB["ConfigMap"]["data"]["job.py"]
    assert "s3://corpus" in text
    found: dict[str, Any] = {"__name__": "job"}
    exec(compile(text.replace("s3://corpus", str(folder)), "job.py", "exec"), found)
    return found["job"]


def test_the_job_of_the_manifest_runs(tmp_path: Path) -> None:
    import evenstep.service as es

    with es.start(job_of_the_config_map(tmp_path), backend="local") as service:
        batches, step = next(service.client(DP=3, TP=0))
        assert len(batches) == 4
        assert step.rank == 3
        assert not service.client(DP=3, TP=1).fetches


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    from evenstep.service.registry.metrics import MetricsExporter

    exporter = MetricsExporter("a")
    metrics = [each.info for each in vars(exporter).values() if hasattr(each, "info")]
    tags = {f"ray_{info['name']}": {*info["tag_keys"], "le"} for info in metrics}
    panels = json.loads((DEPLOY / "grafana" / "service.json").read_text())["panels"]
    asked = set()
    for target in (target for panel in panels for target in panel["targets"]):
        names = re.findall(r"ray_evenstep_\w+", target["expr"])
        known = {re.sub(r"(?<=wait_seconds)_(sum|count|bucket)$", "", name) for name in names}
        assert known <= set(tags), target["expr"]
        used = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
        used += re.findall(r"(\w+)=\"", target["expr"])
        for listed in re.findall(r"by \(([\w, ]+)\)", target["expr"]):
            used += listed.split(", ")
        assert all(set(used) <= tags[name] for name in known), target["expr"]
        asked |= known
    assert asked == set(tags)  # each figure is shown
    boxes = [tuple(panel["gridPos"][side] for side in "xywh") for panel in panels]
    cells = [(x + i, y + j) for x, y, w, h in boxes for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells))  # none covers another
