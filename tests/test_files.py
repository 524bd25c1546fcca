"""Files are written whole or not at all, and read only as written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from evenstep.errors import ConfigurationError
from evenstep.files import MeasuredFile, replacing, write_whole

SCALES = MeasuredFile(
    format="evenstep scales", name="table of scales", version=3, again="weigh again", by_hand="Ask."
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "scales.json"
    SCALES.write(path, {"grams": [1.5, 2e-9], "name": "µ"})
    content = SCALES.read(path)
    assert (content["grams"], content["name"]) == ([1.5, 2e-9], "µ")
    assert json.loads(path.read_text()) == SCALES.content({"grams": [1.5, 2e-9], "name": "µ"})


def test_what_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    SCALES.write(path, {"grams": 1})
    with pytest.raises(ValueError):
        SCALES.write(path, {"grams": float("nan")})
    assert SCALES.read(path)["grams"] == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grams": 2}, r"damaged: it is not what was written; weigh again\. Ask\."),
        ({"version": 2}, "version 2, and this evenstep reads version 3; weigh again"),
        ({"format": "scales"}, "is not an evenstep table of scales; weigh again"),
    ],
)
def test_what_was_changed_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "scales.json"
    path.write_text(json.dumps({**SCALES.content({"grams": 1}), **change}))
    with pytest.raises(ConfigurationError, match=message):
        SCALES.read(path)


def test_what_is_not_there_or_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    with pytest.raises(ConfigurationError, match=r"cannot read .*scales\.json"):
        SCALES.read(path)
    path.write_text("{")
    with pytest.raises(ConfigurationError, match=r"scales\.json is damaged: it is not JSON"):
        SCALES.read(path)


def test_what_was_written_replaces_the_file(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    for text in ("first", "second"):
        with replacing(target) as partial:
            partial.write_text(text)
            assert not target.exists() or target.read_text() == "first"
        assert target.read_text() == text
    assert list(tmp_path.iterdir()) == [target]


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match="device or pipe"):
        write_whole(pipe, "text")
    assert pipe.is_fifo()
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]
