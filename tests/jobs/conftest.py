"""Nothing here is tested without transformers and accelerate."""

from __future__ import annotations

import logging
from importlib.util import find_spec

import pytest

needed = ("transformers", "accelerate", "PIL")
collect_ignore_glob = [] if all(map(find_spec, needed)) else ["test_*"]


@pytest.fixture(autouse=True)
def without_advice(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of tiny jobs are told that their updates are not mixed."""
    caplog.set_level(logging.ERROR)
