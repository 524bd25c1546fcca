"""A file is replaced whole or not at all, and nothing is left beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenstep.files import replacing


def test_what_was_written_takes_the_place_of_the_file(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    for text in ("first", "second"):
        with replacing(target) as partial:
            partial.write_text(text)
            assert not target.exists() or target.read_text() == "first"
        assert target.read_text() == text
    assert list(tmp_path.iterdir()) == [target]


def test_after_a_failure_the_file_is_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("whole")

    def fail_halfway() -> None:
        with replacing(str(target)) as partial:
            partial.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]
