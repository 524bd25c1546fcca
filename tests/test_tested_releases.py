"""The table of tested releases is that of the page, of the package and of the locks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evenstep.tested import TESTED, TestedReleases

ROOT = Path(__file__).parents[1]
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
