"""The code of a page of docs, for the tests that run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, heading: str = "", language: str = "python") -> list[str]:
    """Blocks of code on a page, or under one of its headings of the second level."""
    text = (DOCS / page).read_text()
    if heading:
        (text,) = [s for s in text.split("\n## ") if s.startswith(heading + "\n")]
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run_page(page: str, heading: str, /, **names: Any) -> dict[str, Any]:
    """Runs the one block of code under a heading with these names, and returns what it leaves."""
    (code,) = blocks(page, heading)
    exec(compile(code, f"{page}: {heading}", "exec"), names)
    return names
