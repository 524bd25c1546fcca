"""Nothing here is tested without transformers and accelerate."""

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("transformers") and find_spec("accelerate") else ["test_*"]


@pytest.fixture
def on_this_machine_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of other projects ask no server, write here and see no GPU."""
    for name in ("AXOLOTL_DO_NOT_TRACK", "DO_NOT_TRACK"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
