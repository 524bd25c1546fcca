"""The code of docs/context-handover.md, for the tests that run it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "context-handover.md"


def run_page(heading: str, **names: Any) -> dict[str, Any]:
    """Runs the one block of code under a heading with these names, and gives what it leaves."""
    (section,) = [s for s in PAGE.read_text().split("\n## ") if s.startswith(heading + "\n")]
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    exec(compile(code, f"{PAGE.name}: {heading}", "exec"), names)
    return names
