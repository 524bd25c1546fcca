"""Figures of a running job over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from service_world import failing, job_of, sources, steps_of

import evenstep.service as es
from evenstep.errors import ConfigurationError, SampleError
from evenstep.service.status_http import StatusEndpoint


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_status_is_what_the_service_says(tmp_path: Path) -> None:
    with es.start(job_of(tmp_path), backend="local") as service, StatusEndpoint(service) as asked:
        assert get(f"{asked.url}/status") == (200, service.status())
        steps_of(service.client(0), 2)
        code, body = get(f"{asked.url}/status/?now")
        assert code == 200
        assert body["clients"][0]["step"] == 2
        assert sum(body["planner"]["drawn"].values()) >= 32
        assert get(f"{asked.url}/healthz") == (200, {"failed": None})


def test_an_unknown_path_is_refused(tmp_path: Path) -> None:
    with es.start(job_of(tmp_path), backend="local") as service, StatusEndpoint(service) as asked:
        code, body = get(f"{asked.url}/plans")
        assert code == 404
        assert "ask /status or /healthz" in body["error"]


def test_a_failed_job_is_not_healthy(tmp_path: Path) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=failing))
    with es.start(job, backend="local") as service, StatusEndpoint(service) as asked:
        with pytest.raises(SampleError):
            steps_of(service.client(0), 50)
        code, body = get(f"{asked.url}/healthz")
        assert code == 503
        assert "a bad row" in body["failed"]
        assert get(f"{asked.url}/status")[0] == 200


def test_a_closed_service_says_so(tmp_path: Path) -> None:
    service = es.start(job_of(tmp_path), backend="local")
    with StatusEndpoint(service) as asked:
        service.close()
        code, body = get(f"{asked.url}/status")
        assert code == 503
        assert "closed" in body["error"]


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with es.start(job_of(tmp_path), backend="local") as service, StatusEndpoint(service) as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="choose another port"):
            StatusEndpoint(service, port=port)
        with pytest.raises(ConfigurationError, match="choose another port"):
            StatusEndpoint(service, port=70_000)
