"""An environment for each peer, by uv, from its locked requirements.

torch is in no lock: which build fits is the machine's affair. It is installed first, in the version
of constraints.txt, from where pip is told to look (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL).
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.registry import COMMON, LOCKS, PEERS, environment_of

TORCH = Path("constraints.txt")


def places() -> list[str]:
    """Arguments of uv for the places that pip is told of."""
    found = []
    for where in os.environ.get("PIP_FIND_LINKS", "").split():
        found += ["--find-links", where]
    for where in os.environ.get("PIP_EXTRA_INDEX_URL", "").split():
        found += ["--extra-index-url", where, "--index-strategy", "unsafe-best-match"]
    return found


def uv(*arguments: str, given: str | None = None) -> None:
    """
    Raises:
        SystemExit: uv is missing, or fails; it has printed why.
    """
    command = [os.environ.get("UV", "uv"), *arguments]
    try:
        done = subprocess.run(command, input=given, text=True)
    except FileNotFoundError:
        sys.exit("the environments are made by uv: pip install uv, or set UV to its path")
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}")


def lock(name: str) -> None:
    """Writes the locked requirements of a peer, with what the work needs as it is here."""
    needs = PEERS[name].requirements
    common = [key for key in COMMON if not any(need.startswith(key) for need in needs)]
    wanted = [*needs, "torch", *(f"{key}=={version(key)}" for key in common)]
    target = LOCKS / f"{name}.txt"
    options = ["-q", "--python-version", "3.11", "--no-header", "--no-annotate"]
    options += ["-c", str(TORCH), "--no-emit-package", "torch", *places()]
    command = "python -m benchmarks.peers lock"
    uv("pip", "compile", "-", "-o", str(target), *options, given="\n".join(wanted))
    target.write_text(f"# made by `{command} {name}`\n{target.read_text()}")


def install(name: str) -> None:
    """Makes the environment of a peer again."""
    target = environment_of(name)
    python = str(target / "bin" / "python")
    uv("venv", "-q", "--clear", "--python", sys.executable, str(target))
    options = ["-q", "--compile-bytecode", "--python", python, "-c", str(TORCH)]
    uv("pip", "install", *options, "torch", *places())
    uv("pip", "install", *options, "-r", str(LOCKS / f"{name}.txt"))
