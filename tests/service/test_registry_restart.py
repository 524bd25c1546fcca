"""A registry on Ray that restarts: clients find its sockets before it knows its job."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from service_world import job_of

import evenstep.service as es
from evenstep.service.backends.ray import registry_actor
from evenstep.service.backends.ray.locators import RayLocator
from evenstep.service.backends.ray.registry_actor import JobRegistryActor
from evenstep.service.messages import message
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.channels import Answer, SocketChannel
from evenstep.service.transport.endpoint import Keys

ray = pytest.importorskip("ray", reason="ray is not installed")
PATIENCE = 30.0  # seconds


def test_a_question_that_comes_before_the_job_is_known_is_answered_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Answer] = []

    async def restart(state: Any) -> None:
        registry = JobRegistryActor(RayLocator("space", "registry"), Keys.new())
        asked = threading.Thread(
            target=lambda: answers.append(
                SocketChannel(registry.endpoint).send([message(JobRegistry.job)]).answer()
            )
        )

        def exporter(job: str) -> None:  # its sockets are open by now
            asked.start()
            asked.join(0.5)
            assert not answers

        monkeypatch.setattr(registry_actor, "MetricsExporter", exporter)
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
        await registry.update(state)
        await asyncio.to_thread(asked.join, PATIENCE)

    with es.start(job_of(tmp_path), backend="processes", name="restarts") as service:
        asyncio.run(restart(service._state))
    (answer,) = answers
    assert answer.error is None
    assert answer.value[0].name == "restarts"
