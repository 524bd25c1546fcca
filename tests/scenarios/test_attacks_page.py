"""The page on how faults are tested names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "checking.md"


def test_every_attack_has_a_test() -> None:
    section = PAGE.read_text().partition("\n## Attacks\n")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 10
    for row in rows:
        (name,) = re.findall(r"`(test_\w+\.py)`", row)
        assert (HERE / name).exists(), row
