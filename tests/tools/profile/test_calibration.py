from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from calibrations import LAYERS, known_calibration
from evenstep.cost import FittedCost
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.tools.profile import (
    Calibration,
    LengthMeasurement,
    load_calibration,
    read_calibration,
)
from evenstep.tools.profile.calibration_text import calibration_notes, calibration_text


def test_the_cost_is_that_of_all_layers() -> None:
    cost = known_calibration().cost
    assert cost.per_group == pytest.approx(LAYERS * 1.001e-4)
    assert cost.per_token == pytest.approx(LAYERS * 4e-6)
    assert cost.per_pair == pytest.approx(LAYERS * 1e-9)


def test_the_linear_term_is_the_length_at_which_both_parts_cost_the_same() -> None:
    calibration = known_calibration()
    assert calibration.linear == pytest.approx(4000)
    assert DocumentCost.of(calibration.cost) == DocumentCost(linear=4000)
    assert known_calibration(pair=0).linear is None


def test_the_range_of_the_linear_term_is_that_of_the_quartiles() -> None:
    # Quartiles are 1 % below and above the median; attention has 1e-7 s besides its squares.
    assert known_calibration().linear_range == pytest.approx(
        (4000 * 0.99 / 1.01, 4000 * 1.01 / 0.99), rel=1e-3
    )
    assert known_calibration(pair=0).linear_range == (None, None)


def test_errors_are_those_of_the_fit_at_each_length() -> None:
    calibration = known_calibration(slow=1.5)
    *measured, beyond = calibration.measurements
    errors = [calibration.error(m) for m in measured]
    assert calibration.error(beyond) is None
    for m, error in zip(measured, errors):
        assert m.attention is not None
        assert m.rest is not None
        seconds = m.attention.seconds + m.rest.seconds
        assert error == pytest.approx((calibration.fitted(m.length) - seconds) / seconds)
    assert min(filter(None, errors)) < -0.02
    assert max(filter(None, errors)) > 0.02


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    calibration = known_calibration(slow=1.1)
    path = tmp_path / "new" / "calibration.json"
    calibration.write(path)
    assert read_calibration(path) == calibration
    cost = load_calibration(path)
    assert type(cost) is FittedCost
    assert cost == calibration.cost
    assert [file.name for file in path.parent.iterdir()] == ["calibration.json"]


def test_loading_says_on_what_device_it_was_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "calibration.json"
    known_calibration().write(path)
    with caplog.at_level(logging.INFO, logger="evenstep"):
        load_calibration(path)
    assert f"{path}: measured on Abacus 3000, 2 threads, fp32" in caplog.messages


def test_a_file_can_be_read_without_evenstep(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    known_calibration().write(path)
    content = json.loads(path.read_text())
    assert content["device"] == {"kind": "cpu", "name": "Abacus 3000", "threads": 2}
    assert (content["torch"], content["dtype"]) == ("2.5.0", "fp32")
    assert content["shape"]["hidden_size"] == 512
    assert content["coefficients"]["per_pair"] == pytest.approx(LAYERS * 1e-9)
    assert content["linear"] == pytest.approx(4000)
    first, *_, last = content["measurements"]
    assert first["length"] == 256
    assert first["rest"]["seconds"] == pytest.approx(1e-4 + 4e-6 * 256)
    assert abs(first["error"]) < 1e-6
    assert (last["outcome"], last["attention"], last["error"]) == ("out of memory", None, None)


def change(content: dict[str, Any], *keys: str | int, value: Any) -> None:
    *way, last = keys
    inner: Any = content
    for key in way:
        inner = inner[key]
    assert inner[last] != value
    inner[last] = value


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("version",), 2, "is of version 2, and this evenstep reads version 1; recreate it"),
        (("version",), None, "is of version None"),
        (("format",), "calibration of a scale", "is not an evenstep calibration; recreate it"),
        (("coefficients", "per_pair"), 1.0, "is damaged: it is not what was written"),
        (("coefficients", "per_pair"), float("nan"), "is damaged: it is not what was written"),
        (("layer_fits", "rest", 0), 1.0, "is damaged: it is not what was written"),
        (("measurements", 0, "rest", "seconds"), 1.0, "is damaged"),
        (("device", "name"), "another", "is damaged"),
        (("digest",), "", "is damaged"),
    ],
)
def test_changed_and_foreign_files_are_refused(
    tmp_path: Path, keys: tuple[str | int, ...], value: object, message: str
) -> None:
    path = tmp_path / "calibration.json"
    known_calibration().write(path)
    content = json.loads(path.read_text())
    change(content, *keys, value=value)
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=message):
        load_calibration(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"\xff\xfe\x00", b'{"format": "evens'])
def test_files_that_are_something_else_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"calibration\.json is .* recreate it"):
        load_calibration(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*none\.json: No such file"):
        load_calibration(tmp_path / "none.json")


def test_too_few_lengths_make_no_calibration_and_the_error_says_why() -> None:
    known = known_calibration()
    skipped = LengthMeasurement(length=2048, outcome="skipped", detail="no time left")
    with pytest.raises(
        ConfigurationError, match=r"3 lengths were measured, .*; 2,048: skipped \(no time left\)"
    ):
        Calibration.of(
            [*known.measurements[:3], skipped],
            shape=known.shape,
            device=known.device,
            dtype=known.dtype,
            torch=known.torch,
        )


def test_the_text_has_a_row_for_each_length_and_the_crossing() -> None:
    text = calibration_text(known_calibration())
    assert "on Abacus 3000, 2 threads, fp32, PyTorch 2.5.0" in text
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    # length, attention, ±, rest, ±, both, fitted, error; milliseconds of one layer
    assert rows["1,024"][1:4] == ["1.05", "0.0105", "4.2"]
    assert rows["1,024"][5:] == ["5.24", "5.24", "-0.0%"] or rows["1,024"][7] == "+0.0%"
    assert rows["8,192"][-3:] == ["out", "of", "memory"]
    assert "10 equal layers: 0.001 s per group, 4e-05 s per token, 1e-08 s per squared" in text
    assert (
        "attention costs as much as the rest at 4,000 tokens, 3,921 to 4,081 by the quart" in text
    )


def test_notes_say_what_weakens_the_coefficients() -> None:
    assert calibration_notes(known_calibration()) == ["8,192: out of memory (tried 2 GiB)"]
    assert "the fit is off by more than 15% at" in calibration_notes(known_calibration(slow=5))[-1]
    assert any(
        "4,096 measured" in note for note in calibration_notes(known_calibration(pair=1e-10))
    )
    assert any("too fast to be measured" in n for n in calibration_notes(known_calibration(pair=0)))
