"""What the manifests of deploy/ run: commands and files."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from deployed import (
    FILES,
    GPUS,
    HOSTS,
    MADE,
    SERVICE,
    SIDECAR,
    TRAINER,
    both,
    containers_of,
    manifests,
    options,
    pods_of,
    run_options,
    words,
)


def test_the_service_is_started_by_a_command_that_exists() -> None:
    params = run_options()
    mounts = {each["name"]: each["mountPath"] for each in SERVICE["volumeMounts"]}
    folder, _, file = params["job"].rpartition("/")
    assert folder == mounts["files"] == str(params["placement"].parent)
    assert {file, params["placement"].name} <= set(FILES)
    assert str(params["store"]).startswith(mounts["runs"])
    assert {"containerPort": params["port"], "name": "status"} in SERVICE["ports"]
    assert SERVICE["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "status"}
    for container in (SERVICE, SIDECAR, TRAINER):
        env = {each["name"]: each for each in container["env"]}
        assert env["RAY_AUTH_MODE"]["value"] == "token"
        key = {"secretKeyRef": {"name": "pretrain-token", "key": "auth_token"}}
        assert (
            env["RAY_AUTH_TOKEN"]["valueFrom"] == env["EVENSTEP_STATUS_TOKEN"]["valueFrom"] == key
        )


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


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", *command], start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trainers_start_before_the_service_and_both_go_on_where_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    job_of_the_config_map(tmp_path, monkeypatch)
    name, folder = f"deployed-{os.getpid()}", str(tmp_path)
    given = {"RANKS": "2", "JOB_NAME": name, "SAVE_EVERY": "5", "PATIENCE": "120"}
    for variable, value in {**given, "RUN_FOLDER": folder, "RAY_TMPDIR": folder}.items():
        monkeypatch.setenv(variable, value)
    (tmp_path / "train.py").write_text(FILES["train.py"].replace("65_536", "512"))
    train = "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"{folder}/train.py"
    serve = "evenstep", "service", "run", f"{folder}/job.py", "--backend=processes"
    model, saved = tmp_path / "model.pt", 0
    for run in range(2):
        steps = tmp_path / f"steps-{run}.jsonl"
        kept = "--store", f"{folder}/states", "--resume", "auto", "--step-log", str(steps)
        with running(*train) as trainers:
            time.sleep(2)  # they come first
            with running(*serve, "--name", name, *kept):
                while not model.exists() or torch.load(model)["step"] <= saved:
                    assert trainers.poll() is None
                    time.sleep(0.01)
            time.sleep(2)  # what the service was asked to keep is saved
            trainers.terminate()  # they would wait a minute, and end with an error
            trainers.wait()
        first = next(line for line in map(json.loads, steps.open()) if "step" in line)
        assert first["step"] == saved
        saved = torch.load(model)["step"]
