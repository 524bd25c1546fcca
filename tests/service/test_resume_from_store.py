"""A job that died goes on from what its store has: no step repeated, none lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import HERE
from service_world import comparable, in_one_process, job_of, steps_of
from test_remesh import trained_by

import evenstep.service as es
import evenstep.service.planner.planner as planner_module
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.service.transport.endpoint import path_of

NAME = f"stored-{os.getpid()}"


def test_a_store_gives_the_state_that_was_asked_for_last(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with es.start(job, backend="local", store=tmp_path / "store") as service:
        clients = [service.client(rank) for rank in range(2)]
        for client in clients:
            steps_of(client, 2)
        saved = clients[0].common_state()
        for client in clients:
            steps_of(client, 2)
    state = es.stored_state(job, tmp_path / "store")
    assert state == saved
    assert state["step"] == 2
    with pytest.raises(ConfigurationError, match="no state of step 77; it has those of steps 0"):
        es.stored_state(job, tmp_path / "store", step=77)
    with pytest.raises(ConfigurationError, match="no whole state of any run"):
        es.stored_state(job, tmp_path / "nothing")


def test_a_store_of_another_release_is_refused_by_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_old(*given: Any, **named: Any) -> dict[str, Any]:
        """In which nothing was changed by hand."""
        state = written(*given, **named)
        del state["changes"]
        return {**state, "version": 4}

    job, store = job_of(tmp_path), tmp_path / "store"
    written = planner_module.state_to_dict
    monkeypatch.setattr(planner_module, "state_to_dict", of_old)
    with es.start(job, backend="local", store=store) as service:
        steps_of(service.client(0), 2)
        service.state_dict(2)
    with pytest.raises(MismatchError, match=r"version=5.*version=4.*evenstep that wrote it"):
        es.stored_state(job, store)


def test_without_a_checkpoint_no_step_is_lost(tmp_path: Path) -> None:
    job = job_of(tmp_path, prefetch=1)
    with es.start(job, backend="local", store=tmp_path / "store") as service:
        taken = [steps_of(service.client(rank), 5) for rank in range(2)]
        service.plan(6)  # as clients that prefetch do
    state = es.stored_state(job, tmp_path / "store")
    assert state["step"] <= 5
    again = in_one_process(job, 6, state=state, store=tmp_path / "store")
    whole = in_one_process(job, 6 + state["step"])
    assert [comparable(own) for own in taken] == [own[:5] for own in whole]
    assert again == [own[state["step"] :] for own in whole]
    # A run that ended before it wrote anything is passed over.
    (tmp_path / "store" / "run-0009-ffff").mkdir()
    assert es.stored_state(job, tmp_path / "store")["step"] >= state["step"]


def test_a_step_that_a_model_was_saved_at_resumes_on_another_mesh(tmp_path: Path) -> None:
    """Every sample of an epoch is trained on once, over three meshes."""
    store = tmp_path / "store"
    seen: list[Any] = []
    state = None
    options = {"stop": "all_exhausted", "samples_per_step": 10, "max_tokens": 600}
    for mesh, stop_at in (({"DP": 2}, 3), ({"DP": 3, "CP": 2}, 6), ({"DP": 1}, 99)):
        job = job_of(tmp_path, mesh=mesh, **options)
        with es.start(job, backend="local", store=store, state=state) as service:
            for group in range(mesh["DP"]):
                client = service.client(DP=group)
                seen += trained_by(steps_of(client, stop_at - client.step))
            if stop_at < 99:
                service.plan(stop_at)  # whose state is written as it is planned
                service._planner.close()
        if stop_at < 99:
            state = es.stored_state(job, store, step=stop_at)
    assert len(seen) == len(set(seen)) == 155


# Kill -9


@contextmanager
def running(job_file: Path, store: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "evenstep", "service", "run", str(job_file), "--name", NAME]
    command += ["--backend", "processes", "--store", str(store), *options]
    process = subprocess.Popen(command, start_new_session=True, cwd=HERE)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_job_killed_as_a_whole_goes_on_from_its_store(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.py").write_text(
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from pathlib import Path\nfrom service_world import job_of\n"
        f"job = job_of(Path({str(tmp_path)!r}))\n"
    )
    job = job_of(tmp_path)
    whole = in_one_process(job, 8)
    trained: list[list[Any]] = [[], []]
    for again in range(2):
        with running(folder / "job.py", tmp_path / "store", "--resume", "auto"):
            clients = [es.Client(path_of(NAME), NAME, rank, patience=150) for rank in range(2)]
            begin = clients[0].step
            assert begin == (4 if again else 0)
            for rank, client in enumerate(clients):
                trained[rank][begin:] = comparable(steps_of(client, 4))
            clients[0].state_dict()  # saved with the model; what comes after is lost with it
            for client in clients:
                steps_of(client, 2)
        for client in clients:
            client.close()
    assert trained == whole
    states = sorted((tmp_path / "store").glob("run-*/checkpoints/*"))
    assert json.loads(states[-1].read_bytes().split(b"\n", 1)[1])["step"] == 8
