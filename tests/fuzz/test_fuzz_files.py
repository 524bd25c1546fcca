"""Files that evenstep writes and reads: cut off at any byte or changed anywhere, they are refused
by a `ConfigurationError` or `MismatchError` that names them, or read as they were written. On a
full disk the old file stays whole."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")

from hypothesis import strategies as st
from mutations import EVERY_BYTE, changed, damaged, fuzz, json_bytes

from calibrations import known_calibration
from evenstep.context_parallel.latency import AttentionLatency, load_latency
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.files import replacing
from evenstep.mixture.sample_table import SampleTable
from evenstep.service.planner import plan_log
from evenstep.strategy import DGraph, from_json, to_json
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.tools.profile import load_calibration

FOLDER = tempfile.TemporaryDirectory()
HERE = Path(FOLDER.name)
LATENCY = AttentionLatency(
    heads=2,
    head_size=4,
    queries=(1, 8),
    keys=(1, 8),
    forward_tflops=((1.0, 2.0), (3.0, 4.0)),
    backward_tflops=((1.0, 2.0), (3.0, 4.0)),
)
TABLE = SampleTable(
    sources=("web", "code"),
    source=np.array([0, 1, 1]),
    position=np.arange(3),
    shard=np.zeros(3),
    index=np.arange(3),
    lengths={"text": np.array([3, 1, 2])},
)
PLAN = DGraph.of(TABLE, ClientPlaceTree.of({"DP": 2})).distribute("DP").plan()


def append_plans(path: Path) -> None:
    for _ in range(2):
        plan_log._append(path, f'{{"step":0,"record":{{}},"plan":{to_json(PLAN)}')


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is written, and how it is read."""

    name: str
    write: Callable[[Path], Any]
    read: Callable[[Path], Any]
    notices: bool = True
    """A digest finds any change."""


KINDS = [
    Kind("calibration.json", lambda path: known_calibration().write(path), load_calibration),
    Kind("latency.json", LATENCY.save, load_latency),
    Kind(
        "plans.jsonl",
        append_plans,
        lambda path: to_json(plan) if (plan := plan_log.read_log(path, 0)) else None,
    ),
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
    expected = WHOLE[kind][1]
    assert not kind.notices or found == expected or (kind.name == "plans.jsonl" and found is None)


@EVERY_BYTE
@BY_NAME
def test_a_file_cut_off_at_any_byte(kind: Kind, every: bool) -> None:
    content, _ = WHOLE[kind]
    step = 1 if every else math.ceil(len(content) / 80)
    for end in {*range(0, len(content), step), *range(max(len(content) - 20, 0), len(content))}:
        read_again(kind, content[:end])


@fuzz(25, st.sampled_from(KINDS).flatmap(lambda k: st.tuples(st.just(k), damaged(WHOLE[k][0]))))
def test_a_file_with_damaged_bytes(drawn: tuple[Kind, bytes]) -> None:
    read_again(*drawn)


@fuzz(20, changed(json.loads(to_json(PLAN))))
def test_a_plan_with_changed_values(plan: Any) -> None:
    try:
        found = from_json(json.dumps(plan))
    except ConfigurationError:
        return
    assert from_json(to_json(found)).imbalance == found.imbalance


@fuzz(20, changed(LATENCY.as_dict()))
def test_a_measurement_with_another_content_and_its_digest(content: Any) -> None:
    path = HERE / "forged.json"
    from evenstep.context_parallel import latency

    document = latency._FILE.content({"latency": content, "measured": {}})
    path.write_bytes(json_bytes(document))
    try:
        found = load_latency(path)
    except ConfigurationError as error:
        assert "forged.json" in str(error)  # noqa: PT017
        return
    assert np.isfinite(found(np.array([3]), np.array([7]))).all()


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


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.name)
def test_a_full_disk_leaves_the_old_file(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / kind.name
    path.write_bytes(b"old")
    says = rf"cannot write .*{kind.name}: .*File too large"
    with full_disk(), pytest.raises(ConfigurationError, match=says):
        kind.write(path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [kind.name]


def test_a_plan_log_on_a_full_disk_keeps_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_bytes(b"{}\n")
    with full_disk(), pytest.raises(ConfigurationError, match=r"cannot write .*plans.jsonl"):
        append_plans(path)
    assert path.read_bytes() == b"{}\n"


def test_a_plan_log_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    path.write_bytes(b'{"step":0,"rec')
    append_plans(path)
    plan = plan_log.read_log(path, 0)
    assert plan is not None
    assert to_json(plan) == to_json(PLAN)


def test_a_folder_is_not_replaced(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "file" / "x"):
        (tmp_path / "file").touch()
        with pytest.raises(ConfigurationError, match="cannot write"), replacing(target) as partial:
            partial.touch()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
