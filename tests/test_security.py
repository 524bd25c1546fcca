"""What SECURITY.md says: what is unpickled, who listens, and that names are not markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import evenstep

PACKAGE = Path(evenstep.__file__).parent
SECURITY = PACKAGE.parents[1] / "SECURITY.md"

UNPICKLES = {
    # processes of one rank, through pipes and memory that they inherit
    "loader/batcher/chunk_checks.py",
    "loader/learning/question.py",
    "loader/learning/probe.py",
    "loader/start/fork_server.py",
    "loader/transport/shared_memory.py",
    # a Source Loader and its own workers, through pipes
    "service/source_loader/preparer.py",
    # roles of the service: over sockets of the same user, or with the job's keys
    "service/remote/role_host.py",
    "service/transport/frames.py",
    # a loader's process and the one that started it, through pipes
    "service/backends/processes/loader_main.py",
    "service/backends/processes/loader_processes.py",
    # the process that measures sources and the one that started it, through pipes; and what it
    # has pickled itself, to measure that
    "service/sizing/measuring_main.py",
    "service/sizing/job_profile.py",
    "service/sizing/source_measuring.py",
    # inside Ray's connections
    "service/backends/ray/actors.py",
    # the ranks of a job, over its process group
    "integrations/rank_values.py",
}
LISTENS = {
    "loader/transport/lifeline_sockets.py",
    "service/status_http.py",
    "service/transport/server.py",
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


def test_the_page_is_linked() -> None:
    root = SECURITY.parent
    assert "SECURITY.md" in (root / "README.md").read_text()
    assert "SECURITY.md" in (root / "docs" / "service-operation.md").read_text()
    assert "EVENSTEP_STATUS_TOKEN" in SECURITY.read_text()


def test_a_name_with_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    from evenstep.cli.output import print_table

    print_table("job", {"drawn from [/red]web[b]": "1[/]"})
    assert "drawn from [/red]web[b]" in capsys.readouterr().out
