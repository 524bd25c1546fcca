"""`evenstep.batch` has all its public names, though it imports most of them on first use."""

from __future__ import annotations

import subprocess
import sys


def test_every_name_is_found_on_first_use_and_is_no_module() -> None:
    script = (
        "import evenstep.batch as batch; from evenstep.batch import to_megatron; "
        "print([n for n in batch.__all__ if type(getattr(batch, n)) is type(batch)])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.split() == ["[]"], found.stderr
