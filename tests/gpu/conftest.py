"""Helpers are those of other folders."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in ("scenarios", "integrations", "context_parallel"):
    sys.path.append(str(Path(__file__).parents[1] / folder))
