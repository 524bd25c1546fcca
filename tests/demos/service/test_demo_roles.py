from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["strategies", "vision.strategies"])
def test_what_planners_and_loaders_run_needs_no_torch(module: str) -> None:
    program = f"import sys, evenstep_demos.service.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
