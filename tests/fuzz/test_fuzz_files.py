"""Files that evenstep writes and reads: cut off at any byte or changed anywhere, they are refused
by a `ConfigurationError` or `MismatchError` that names them, or read as they were written. On a
full disk the old file stays whole."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from hypothesis import strategies as st
from mutations import damaged, fuzz

from calibrations import known_calibration
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.files import LineFile
from evenstep.tools.profile import load_calibration

FOLDER = tempfile.TemporaryDirectory()
HERE = Path(FOLDER.name)


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is written, and how it is read."""

    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]


KINDS = [
    Kind("calibration.json", lambda path: known_calibration().write(path), load_calibration),
]


def whole(kind: Kind) -> tuple[bytes, Any]:
    path = HERE / kind.name
    path.unlink(missing_ok=True)
    kind.write(path)
    return path.read_bytes(), kind.read(path)


WHOLE = {kind: whole(kind) for kind in KINDS}
BY_NAME = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def read_again(kind: Kind, content: bytes) -> None:
    """Reads a damaged file: as it was, or not at all."""
    folder = HERE / kind.name.partition(".")[0]
    folder.mkdir(exist_ok=True)
    path = folder / kind.name
    path.write_bytes(content)
    try:
        found = kind.read(path)
    except (ConfigurationError, MismatchError) as error:
        assert kind.name in str(error)  # noqa: PT017
        return
    assert found == WHOLE[kind][1]


@BY_NAME
def test_a_file_cut_off_at_any_byte(kind: Kind) -> None:
    content, _ = WHOLE[kind]
    step = math.ceil(len(content) / 80)
    for end in {*range(0, len(content), step), *range(max(len(content) - 20, 0), len(content))}:
        read_again(kind, content[:end])


@fuzz(25, st.sampled_from(KINDS).flatmap(lambda k: st.tuples(st.just(k), damaged(WHOLE[k][0]))))
def test_a_file_with_damaged_bytes(drawn: tuple[Kind, bytes]) -> None:
    read_again(*drawn)


# A full disk


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
    kind = KINDS[0]
    path = tmp_path / kind.name
    path.write_bytes(b"old")
    says = rf"cannot write .*{kind.name}: .*File too large"
    with full_disk(), pytest.raises(ConfigurationError, match=says):
        kind.write(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [kind.name]


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
