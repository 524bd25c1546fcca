"""Runs command lines in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenstep.cli import main

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def figures(capsys: Capture, *arguments: str) -> dict[str, Any]:
    """The JSON object of a command that succeeds."""
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert isinstance(found, dict)
    return found
