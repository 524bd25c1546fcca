"""The reference has every public name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import evenstep
import evenstep.errors
import evenstep.service

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@pytest.mark.parametrize("module", [evenstep, evenstep.service], ids=lambda m: m.__name__)
def test_every_public_name_is_in_the_reference(module) -> None:
    pages = "\n".join(path.read_text() for path in REFERENCE.glob("*.md"))
    shown = {name.split(".")[-1] for name in re.findall(r"^::: ([\w.]+)$", pages, re.M)}
    assert "errors" in shown
    shown |= set(vars(evenstep.errors))  # the whole module is one page
    assert not {name for name in module.__all__ if not name.startswith("__")} - shown
