"""Jobs of several ranks are those of the scenarios."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "scenarios"))
