"""Python code to sources on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenstep.errors import ConfigurationError
from evenstep.strategy.sample_table import SampleId
from evenstep_demos.service import sources
from evenstep_demos.service.sources import write_sources
from evenstep_demos.service.strategies import tokens_of


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The interpreter's library."""
    paths = {"stdlib": str(tmp_path / "lib"), "purelib": str(tmp_path / "none")}
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: paths)
    return tmp_path / "lib"


def test_python_code_is_grouped_by_folder(tmp_path: Path, root: Path) -> None:
    for folder, count in (
        ("a", 6),
        ("b/c", 3),
        ("b/c/d", 2),
        ("b", 4),
        ("d", 1),
        ("__pycache__", 9),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            name = f"{folder} {number}".replace("/", "_").replace(" ", "_")
            (root / folder / f"{name}.py").write_text(f"def {name}():\n    return {number}\n")
    (root / "a" / "bad.py").write_bytes(b"# coding: nonsense\n\xff")
    told: list[tuple[int, int]] = []
    stored = write_sources(tmp_path / "out", 3, 0, lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert stored.samples == {"a": 6, "b/c": 5, "b": 4}
    row = stored.row(SampleId("b", 0, 2))
    assert bytes(tokens_of(row)["input_ids"]).decode() == row["text"]


def test_no_character_is_cut_in_two(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MAX_LENGTH", 64)
    root.mkdir()
    for number in range(4):
        (root / f"{number}.py").write_text("a" + "\u00e9" * 40)
    stored = write_sources(tmp_path / "out", 1, 0)
    assert stored.samples == {"modules": 1}  # the others are copies
    assert stored.row(SampleId("modules", 0, 0))["text"] == "a" + "\u00e9" * 31


def test_a_library_without_code_is_refused_by_name(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"no Python code under {root}"):
        write_sources(tmp_path / "out", 1, 0)
