"""The reference has every public name, the table of tested releases is that of the page, of the
package and of the locks, and what SECURITY.md says holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import evenstep
import evenstep.errors
import evenstep.service
from evenstep.tested import TESTED, TestedReleases

ROOT = Path(__file__).parents[1]
PACKAGE = Path(evenstep.__file__).parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("module", [evenstep, evenstep.service], ids=lambda m: m.__name__)
def test_every_public_name_is_in_the_reference(module) -> None:
    pages = "\n".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    shown = {name.split(".")[-1] for name in re.findall(r"^::: ([\w.]+)$", pages, re.M)}
    assert "errors" in shown
    shown |= set(vars(evenstep.errors))  # the whole module is one page
    assert not {name for name in module.__all__ if not name.startswith("__")} - shown


def test_the_first_example_runs_as_it_stands_and_prints_what_the_page_says(tmp_path: Path) -> None:
    code, said = re.findall(
        r"^```(?:python)?\n(.*?)^```", README.split("## Use it")[1], re.S | re.M
    )[:2]
    (tmp_path / "example.py").write_text(code)
    run = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == (said, 0), run.stderr


# Releases

PIN = re.compile(r"^([\w-]+)==([\w.]+)", re.M)


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    section = page.split("## Supported releases")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \| ([\d.]+) \|$", section, re.M)
    assert {name: (oldest, newest) for name, oldest, newest in rows} == TESTED


def test_the_package_takes_no_release_that_is_older_than_what_was_tested() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={TESTED["python"].oldest}"' in text
    bounds = dict(re.findall(r'"(torch|numpy|pyarrow)>=([\d.]+)"', text))
    assert bounds == {name: TESTED[name].oldest for name in ("torch", "numpy", "pyarrow")}


@pytest.mark.parametrize("lock", sorted((ROOT / "locks").glob("*.txt")), ids=lambda path: path.name)
def test_what_the_suites_run_with_is_in_the_table(lock: Path) -> None:
    pins = [(name, release) for name, release in PIN.findall(lock.read_text()) if name in TESTED]
    assert {"torch", "numpy", "transformers"} <= {name for name, _ in pins}
    outside = [(name, release) for name, release in pins if TESTED[name].side(release)]
    assert not outside, "test them, then move the table in evenstep.tested"


@pytest.mark.parametrize(
    ("release", "side"),
    [
        ("2.4.9", "older"),
        ("2.5.0", ""),
        ("2.13.0+cpu", ""),
        ("2.15.9.dev1", ""),
        ("2.16.0rc1", "newer"),
        ("3.0", "newer"),
    ],
)
def test_a_release_is_within_or_on_one_side(release: str, side: str) -> None:
    assert TestedReleases("2.5", "2.15").side(release) == side


# Security

UNPICKLES = {
    # processes of one rank, through pipes and memory that they inherit
    "loader/batcher/chunk_checks.py",
    "loader/learning/question.py",
    "loader/learning/probe.py",
    "loader/transport/shared_memory.py",
    # a Source Loader and its own workers, through pipes
    "service/source_loader/preparer.py",
    # roles of the service: over sockets of the same user, or with the job's keys
    "service/remote/role_host.py",
    "service/transport/frames.py",
    # a loader's process and the one that started it, through pipes; and that which measures sources
    "service/backends/processes/loader_main.py",
    "service/remote/child_process.py",
    # the process that measures sources and the one that started it, through pipes; and what it
    # has pickled itself, to measure that
    "service/sizing/measuring_main.py",
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
    assert "SECURITY.md" in README
    assert "SECURITY.md" in (ROOT / "docs" / "service-operation.md").read_text()
    assert "EVENSTEP_STATUS_TOKEN" in (ROOT / "SECURITY.md").read_text()
