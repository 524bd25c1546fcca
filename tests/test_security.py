"""What SECURITY.md says: what is unpickled, who listens, and that names are not markup."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import evenstep
from evenstep.errors import EvenstepError
from evenstep.mixture.sample_table import SampleTable
from evenstep.strategy import DGraph, LoadingPlan, from_json, to_json
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.tools.report.plan_page import plan_page

PACKAGE = Path(evenstep.__file__).parent
SECURITY = PACKAGE.parents[1] / "SECURITY.md"

UNPICKLES = {
    # processes of one rank, through pipes and memory that they inherit
    "loader/batcher/filler_sample.py",
    "loader/learning/probe.py",
    "loader/start/served.py",
    "loader/transport/codec.py",
    # a Source Loader and its own workers, through pipes
    "service/source_loader/preparer.py",
    # roles of the service: over sockets of the same user, or with the job's keys
    "service/remote/role_host.py",
    "service/transport/frames.py",
    # a loader's process and the one that started it, through pipes
    "service/backends/processes/loader_main.py",
    "service/backends/processes/loader_process.py",
    # the process that measures sources and the one that started it, through pipes; and what it
    # has pickled itself, to measure that
    "service/sizing/measuring_main.py",
    "service/sizing/profiling.py",
    "service/sizing/source_measuring.py",
    # inside Ray's connections
    "service/backends/ray/actors.py",
    "service/backends/ray/loader_actor.py",
}
LISTENS = {
    "loader/transport/lifeline_sockets.py",
    "service/status_http.py",
    "service/transport/server.py",
    "tools/doctor/network.py",  # on 127.0.0.1, for as long as it takes to connect
}


def files_with(pattern: str) -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text())
    }


def test_only_what_comes_from_the_same_job_is_unpickled() -> None:
    by_torch = r"torch\.load\(|(all_gather|broadcast|scatter)_object"
    calls = rf"pickle\.loads?\(|Unpickler\(|allow_pickle=True|\bdill\b|{by_torch}"
    assert files_with(calls) == UNPICKLES


def test_nothing_else_listens() -> None:
    assert files_with(r"HTTPServer|\.bind\(|\.listen\(|Listener\(|create_server\(") == LISTENS


MARKUP = "<script>alert('&')</script>\nclick p0 href"


def made_plan() -> LoadingPlan:
    zeros = np.zeros(5, np.int64)
    lengths = {"text": np.array([3, 5, 8, 2, 60]), "image": np.array([0, 1, 0, 1, 0])}
    table = SampleTable(("web", "code"), zeros, np.arange(5), zeros, np.arange(5), lengths)
    tree = ClientPlaceTree.of({"DP": 2, "TP": 2})
    root = DGraph.of(table, tree, max_tokens=64)
    encoder = root.modality("image").distribute("WORLD").balance("greedy")
    graph = root.modality("text").distribute("DP")
    return graph.balance("greedy").broadcast_at("TP").plan(subplans={"encoder": encoder})


def test_names_in_a_plan_are_not_markup() -> None:
    """Whichever text of a plan that somebody sent is replaced."""
    given = to_json(made_plan())
    drawn = []
    for text in sorted(set(re.findall(r'"[^"]*"', given))):
        try:
            plan = from_json(given.replace(text, json.dumps(MARKUP)))
        except EvenstepError:
            continue
        drawn.append(text)
        drawing = plan_page(plan)
        assert "<script" not in drawing, text
        assert "alert('&')" not in drawing, text
    assert {'"web"', '"text"', '"encoder"'} <= set(drawn)


def test_the_page_is_linked() -> None:
    root = SECURITY.parent
    assert "SECURITY.md" in (root / "README.md").read_text()
    assert "SECURITY.md" in (root / "docs" / "service-operation.md").read_text()
    assert "EVENSTEP_STATUS_TOKEN" in SECURITY.read_text()


def test_a_name_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from evenstep.cli.output import print_table

    print_table("job", {"drawn from [/red]web[b]": "1[/]"})
    assert "drawn from [/red]web[b]" in capsys.readouterr().out
