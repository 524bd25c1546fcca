"""Planning is pure: no torch, no ray, no clock, no I/O, no numbers but seeded ones."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import evenstep.plan

PLAN = Path(evenstep.plan.__file__).parent
PACKAGE = PLAN.parent
# What planning and costs know nothing of.
ABOVE = ("buffer", "messages", "protocol", "settled", "totals")
# What knows of meshes and strategies, above planning: by folder, what else it may import.
STRATEGIES = {"topology": ("topology",), "graph": ("graph", "topology")}
PURE = [
    *sorted(PLAN.rglob("*.py")),
    *(path for folder in STRATEGIES for path in sorted((PACKAGE / folder).rglob("*.py"))),
    *(PACKAGE / f"{name}.py" for name in ("cost", "errors", *ABOVE)),
]
by_file = pytest.mark.parametrize("path", PURE, ids=lambda p: p.relative_to(PACKAGE).as_posix())

IMPURE = {
    "asyncio",
    "datetime",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "ray",
    "secrets",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "torch",
    "uuid",
}
BELOW = {f"evenstep.{name}" for name in ("cost", "errors", "plan", *ABOVE)}


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be checked"
            yield node.module or ""


@by_file
def test_no_pure_file_imports_a_clock_an_accelerator_or_the_outside_world(path: Path) -> None:
    modules = set(imported_modules(ast.parse(path.read_text())))
    assert not {module.split(".")[0] for module in modules} & IMPURE


@by_file
def test_imports_point_down_only(path: Path) -> None:
    own = {m for m in imported_modules(ast.parse(path.read_text())) if m.startswith("evenstep")}
    folder = path.relative_to(PACKAGE).parts[0]
    below = BELOW | {f"evenstep.{name}" for name in STRATEGIES.get(folder, ())}
    assert all(any(m == low or m.startswith(f"{low}.") for low in below) for m in own), own
    if path.is_relative_to(PLAN) or path.name == "cost.py":
        assert not any(m.startswith(tuple(f"evenstep.{name}" for name in ABOVE)) for m in own)


def test_files_and_rooms_of_plan_import_each_other_in_one_direction() -> None:
    needs: dict[str, set[str]] = {}
    for path in PLAN.rglob("*.py"):
        own = path.relative_to(PLAN).parts[0].removesuffix(".py")
        # Only what runs: names for annotations alone are imported below `if TYPE_CHECKING`.
        ran = ast.Module([n for n in ast.parse(path.read_text()).body if not isinstance(n, ast.If)])
        modules = [m.split(".") for m in imported_modules(ran)]
        if own != "__init__":
            rooms = {m[2] for m in modules if m[:2] == ["evenstep", "plan"]}
            needs.setdefault(own, set()).update(rooms - {own})
    assert needs["even"] >= {"groups", "policy"}
    list(TopologicalSorter(needs).static_order())  # raises CycleError


@by_file
def test_no_pure_file_opens_prints_or_draws_unseeded_numbers(path: Path) -> None:
    seeded = {"Generator", "PCG64", "SeedSequence"}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input", "hash", "id", "default_rng"}
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "random"
        ):
            assert node.attr in seeded, f"np.random.{node.attr} draws from hidden state"


HEAVY = ("torch", "ray", "scipy", "numba", "rich", "typer", "pyarrow", "matplotlib", "transformers")


@pytest.mark.parametrize(
    "modules",
    [
        "evenstep.plan",
        "evenstep.cost",
        "evenstep.errors",
        "evenstep.protocol",
        "evenstep.strategy.mesh",
        "evenstep.strategy",
    ],
)
def test_planning_loads_numpy_and_nothing_heavy(modules: str) -> None:
    script = f"import sys, {modules}; print(*[m for m in {HEAVY} if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
