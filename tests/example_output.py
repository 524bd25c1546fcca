"""What an example prints, as its last lines, which are comments, say."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
_NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
_NEAR = 0.1
"""Share by which numbers may differ between machines; and how much, of those below 1."""


def expected_lines(example: str) -> list[str]:
    lines = (EXAMPLES / example).read_text().rstrip().splitlines()
    comments = [line for line in lines if line == "#" or line.startswith("# ")]
    assert comments, f"{example} does not end with what it prints"
    assert lines[-len(comments) :] == comments
    return [line[2:] for line in comments if line != "# ..."]


def check_printed(example: str, said: str) -> None:
    """Each expected line is among those printed, with numbers that are near; "..." is anything."""
    lines = [line.strip() for line in re.split(r"[\r\n]", said)]
    for expected in expected_lines(example):
        assert any(_is_like(expected, line) for line in lines), f"{expected!r} is not in\n{said}"


def _is_like(expected: str, line: str) -> bool:
    parts = [re.split(f"({_NUMBER})", part) for part in expected.strip().split("...")]
    numbers = [float(number) for part in parts for number in part[1::2]]
    pattern = ".*".join(
        "".join(f"({_NUMBER})" if i % 2 else re.escape(text) for i, text in enumerate(part))
        for part in parts
    )
    found = re.fullmatch(pattern, line)
    return found is not None and numbers == pytest.approx(
        list(map(float, found.groups())), rel=_NEAR, abs=_NEAR
    )


def run_example(example: str, folder: Path, within: float = 300) -> str:
    """What the commands of the first lines print, one after the other, in an empty folder. Skips
    where a package is missing."""
    tree = ast.parse((EXAMPLES / example).read_text())
    _skip_without(tree)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start = {"torchrun": launch, "python": [sys.executable]}
    said = ""
    for line in (ast.get_docstring(tree, clean=False) or "").splitlines():
        words = shlex.split(line) if line.startswith("    ") else []
        if not words or words[0] not in start:
            continue
        words = [word.replace("/tmp/", f"{folder}/") for word in words[1:]]
        words = [word.replace("examples/", f"{EXAMPLES}/") for word in words]
        command = [*start[line.split()[0]], *words]
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=within,
        )
        assert done.returncode == 0, done.stderr[-6000:]
        said += done.stdout
    return said


def _skip_without(tree: ast.Module) -> None:
    for node in tree.body:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in (name.partition(".")[0] for name in names):
            if not (EXAMPLES / f"{name}.py").exists() and find_spec(name) is None:
                pytest.skip(f"{name} is not installed")
