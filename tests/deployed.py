"""What deploy/ makes of its values, for the tests of it."""

from __future__ import annotations

import re
import runpy
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
pytest.importorskip("jinja2", reason="Jinja2 is not installed")

REPOSITORY = Path(__file__).parent.parent
DEPLOY = REPOSITORY / "deploy"
render = runpy.run_path(str(DEPLOY / "render.py"))["render"]
VALUES = yaml.safe_load((DEPLOY / "values.yaml").read_text())
HOSTS, GPUS, PATIENCE = VALUES["hosts"], VALUES["gpus"], VALUES["patience"]

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
