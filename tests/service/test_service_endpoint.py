"""Figures of a running job over HTTP."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from service_world import failing, job_of, sources, steps_of

import evenstep.service as es
from evenstep.errors import ConfigurationError, SampleError
from evenstep.service import status_http
from evenstep.service.registry.metrics import TakenStep, WaitStatistics
from evenstep.service.status_http import StatusEndpoint


def get(url: str, **headers: str) -> tuple[int, Any]:
    try:
        asked = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_status_is_what_the_service_says_while_it_runs_fails_and_is_closed(tmp_path: Path) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=failing))
    with es.start(job, backend="local") as service, StatusEndpoint(service) as asked:
        assert get(f"{asked.url}/status") == (200, service.status())
        steps_of(service.client(0), 1)
        code, body = get(f"{asked.url}/status/?now")
        assert code == 200
        assert body["clients"][0]["step"] == 1
        drawn = sum(body["planner"]["drawn"].values())
        assert drawn >= 16  # more where steps are planned ahead
        assert drawn % 16 == 0
        assert get(f"{asked.url}/healthz") == (200, {"failed": None})
        code, body = get(f"{asked.url}/plans")
        assert code == 404
        assert "ask /status or /healthz" in body["error"]
        for port in (int(asked.url.rpartition(":")[2]), 70_000):
            with pytest.raises(ConfigurationError, match="choose another port"):
                StatusEndpoint(service, port=port)
        with pytest.raises(SampleError):
            steps_of(service.client(0), 50)
        code, body = get(f"{asked.url}/healthz")
        assert code == 503
        assert "a bad row" in body["failed"]
        assert get(f"{asked.url}/status")[0] == 200
        service.close()
        code, body = get(f"{asked.url}/status")
        assert code == 503
        assert "closed" in body["error"]


class Named:
    """A service whose source has a name that is a page."""

    def status(self) -> dict[str, Any]:
        return {"failed": None, "planner": {}, "drawn": {"<script>alert('&')</script>": 1}}


def test_names_cannot_be_taken_for_a_page() -> None:
    with StatusEndpoint(Named()) as asked:
        assert get(f"{asked.url}/status") == (200, Named().status())
        with urllib.request.urlopen(f"{asked.url}/status", timeout=10) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert not set(b"<>&") & set(answer.read())
        for path in ("/<script>", "/%3Cscript%3E"):
            with socket.create_connection(asked._server.server_address[:2], timeout=10) as client:
                client.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                assert b"<script" not in client.makefile("rb").read()


def test_a_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    token = "größe"
    for given, variable in ((token, "another"), (None, token)):
        monkeypatch.setenv("EVENSTEP_STATUS_TOKEN", variable)
        with StatusEndpoint(Named(), token=given) as asked:
            for path in ("status", "nothing"):
                assert get(f"{asked.url}/{path}")[0] == 401
            assert get(f"{asked.url}/healthz") == (200, {})  # as a probe asks
            for wrong in ("", "Bearer", "Bearer another", f"Bearer {token}x", token):
                header = wrong.encode().decode("latin-1")
                assert get(f"{asked.url}/status", Authorization=header)[0] == 401
            header = f"Bearer {token}".encode().decode("latin-1")
            assert get(f"{asked.url}/status", Authorization=header)[0] == 200
    for unusable in ("", " ", "two\nlines", "end\n"):
        monkeypatch.setenv("EVENSTEP_STATUS_TOKEN", unusable)
        with pytest.raises(ConfigurationError, match="the token is empty, or has characters"):
            StatusEndpoint(Named())
    monkeypatch.delenv("EVENSTEP_STATUS_TOKEN")
    for host in ("0.0.0.0", "::", "10.0.0.1"):
        with pytest.raises(ConfigurationError, match="set the environment variable EVENSTEP_STA"):
            StatusEndpoint(Named(), host=host)


def test_clients_that_send_too_much_or_nothing_do_not_stop_others() -> None:
    with StatusEndpoint(Named()) as asked:
        address = asked._server.server_address[:2]
        idle = [socket.create_connection(address, timeout=10) for _ in range(8)]
        with socket.create_connection(address, timeout=10) as client:
            client.sendall(b"GET /" + b"a" * 70_000 + b" HTTP/1.0\r\n\r\n")
            assert b" 414 " in client.makefile("rb").readline()
        assert get(f"{asked.url}/status")[0] == 200
        slow = [socket.create_connection(address, timeout=10) for _ in range(40)]
        for _ in range(4):
            for each in slow:
                with suppress(OSError):  # given up
                    each.sendall(b"G")
            assert get(f"{asked.url}/status")[0] == 200
        assert slow[0].recv(1) == b""
        for each in [*idle, *slow]:
            each.close()


def test_a_request_has_one_deadline_however_often_something_of_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(status_http, "_LIMIT", 0.5)
    with StatusEndpoint(Named()) as asked:
        address = asked._server.server_address[:2]
        with socket.create_connection(address, timeout=10) as client:
            client.sendall(b"GET /status HTTP/1.0\r\nX: ")
            drip = iter(range(100))
            with suppress(OSError):  # given up
                for _ in drip:
                    client.sendall(b"a")
                    time.sleep(0.1)
            assert next(drip, None) is not None


def test_waits_are_those_of_the_slowest_rank() -> None:
    waits = WaitStatistics()
    figures = {"imbalance": 1.1, "imbalance_before": 1.5, "tokens": 10}
    for step, seconds in enumerate([(3.0, 1.0), (0.1, 0.4)]):
        for rank in (0, 1):
            stages = {"plan": rank + 1.0, "build": 2.0}
            waits.record_step(rank, TakenStep(step, seconds[rank], stages, **figures))
    summary = waits.summary()
    assert summary["exposed_seconds"] == {"first": 3.0, "last": 0.4, "mean": 0.4, "p95": 0.4}
    assert summary["stage_seconds"] == {"build": 2.0, "plan": 1.5}
    assert summary["tokens"] == 40
    assert not waits.all_ended
    waits.record_end(0)
    waits.record_end(1)
    assert waits.all_ended


def test_only_the_last_steps_are_kept() -> None:
    waits = WaitStatistics(kept=3)
    for step in range(10):
        waits.record_step(0, TakenStep(step, 0.5, {}, 1.0, 1.0, 1))
    assert waits.summary()["first_step"] == 7
    assert waits.clients() == [{"rank": 0, "step": 10, "wait_seconds": 5.0, "ended": False}]
