"""Importing evenstep costs next to nothing; what is heavy is imported where it is used."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "accelerate",
    "hypothesis",
    "lightning",
    "matplotlib",
    "multiprocessing",
    "numpy",
    "pandas",
    "pyarrow",
    "pytest",
    "ray",
    "rich",
    "scipy",
    "tokenizers",
    "torch",
    "transformers",
    "typer",
)


def loaded_by(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*[m for m in {HEAVY} if m in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    return set(ran.stdout.split())


def test_importing_evenstep_loads_not_even_numpy() -> None:
    assert loaded_by("import evenstep") == set()


def test_using_it_loads_numpy_and_torch_and_nothing_optional() -> None:
    brought = loaded_by("import numpy, torch, multiprocessing")
    everything = "import evenstep; [getattr(evenstep, name) for name in evenstep.__all__]"
    assert loaded_by(everything) == brought
    assert {"numpy", "torch"} <= brought
