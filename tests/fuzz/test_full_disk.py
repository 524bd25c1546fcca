"""On a full disk the old file stays whole, and lines are whole or missing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from calibrations import known_calibration
from evenstep.errors import ConfigurationError
from evenstep.files import LineFile


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Files of this process cannot grow beyond 64 bytes, nor can the one that pytest writes to."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(b"old")
    says = rf"cannot write .*{path.name}: .*File too large"
    with full_disk(), pytest.raises(ConfigurationError, match=says):
        known_calibration().write(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


def test_lines_on_a_full_disk_are_whole_or_missing_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"{}\n")
    lines = LineFile(path)
    with full_disk():
        for length in (100, 8, 90):
            lines.add(b"x" * length)
    lines.add(b"end")
    assert path.read_bytes().split() == [b"{}", b"x" * 8, b"end"]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} cannot be written (File too large); the run goes on, and the lines are missing",
        f"{path} is written again; 1 lines are missing",
    ] * 2
    with pytest.raises(ConfigurationError, match=r"cannot write .*events.jsonl/x: "):
        LineFile(path / "x")
