"""The rooms of the house: who may import whom, what stays pure, and no name twice."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import evenstep

PACKAGE = Path(evenstep.__file__).parent
SOURCE = PACKAGE.parent

# What every file may import.
GROUND = ("arrays", "errors", "lazy_names")
# Each room and module, and what it may import besides itself and the ground, from the bottom up.
# Imports point one way: a name may only list what stands above it in this table.
TABLE = """
arrays:
errors:
lazy_names:
tested:
version:
files:
run_log: files
cost:
processes:
plan: cost
protocol: cost plan
mixture: plan
strategy: cost mixture plan
batch: plan protocol
data: batch files mixture plan
context_parallel: batch plan
loader: batch context_parallel cost data plan processes protocol run_log
rebalance: batch cost loader plan
service: batch context_parallel cost data files mixture plan processes protocol run_log strategy
testing: batch loader
tools: batch cost files loader plan protocol tested version
integrations: batch cost data files loader plan rebalance tools
cli: cost data files plan service strategy tools version
__main__: cli
evenstep_demos: evenstep batch cli plan tools
"""
ALLOWED: dict[str, tuple[str, ...]] = {
    room: tuple(lower.split())
    for room, lower in (line.split(":") for line in TABLE.strip().splitlines())
}
ROOMS = [name for name in ALLOWED if (PACKAGE / name).is_dir()]
PURE_ROOMS = ("cost", "plan", "protocol", "mixture", "strategy")

FILES = [p for p in sorted(SOURCE.glob("evenstep*/**/*.py")) if p != PACKAGE / "__init__.py"]
PURE = [
    PACKAGE / "errors.py",
    *(path for room in PURE_ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))),
]
# fmt: off
IMPURE = {
    "asyncio", "datetime", "io", "multiprocessing", "os", "pathlib", "random", "ray", "secrets",
    "socket", "subprocess", "tempfile", "threading", "time", "torch", "uuid",
}
# fmt: on
HEAVY = ("torch", "ray", "scipy", "rich", "typer", "pyarrow", "matplotlib", "transformers")


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def room_of(path: Path) -> str:
    top, *inner = path.relative_to(SOURCE).parts
    return top if top != "evenstep" else inner[0].removesuffix(".py")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they can be checked"
            yield node.module or ""


@cache
def imports_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The modules that a file imports, and those that it imports when it runs: names for
    annotations alone are imported below `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    ran = ast.Module([node for node in tree.body if not isinstance(node, ast.If)])
    return frozenset(imported_modules(tree)), frozenset(imported_modules(ran))


def rooms_imported(path: Path) -> set[str]:
    modules = [module.split(".") for module in imports_of(path)[0]]
    own = {(m[1] if len(m) > 1 else m[0]) for m in modules if m[0] == "evenstep"}
    return own | {m[0] for m in modules if m[0] == "evenstep_demos"}


by_file = pytest.mark.parametrize("path", FILES, ids=name_of)
by_room = pytest.mark.parametrize("room", ROOMS)


def test_the_table_has_every_room_and_points_one_way() -> None:
    assert {room_of(path) for path in FILES} == set(ALLOWED)
    order = list(ALLOWED)
    for room, lower in ALLOWED.items():
        assert all(low == "evenstep" or order.index(low) < order.index(room) for low in lower)


@by_file
def test_a_room_imports_only_what_the_table_allows(path: Path) -> None:
    room = room_of(path)
    assert rooms_imported(path) <= {room, *GROUND, *ALLOWED[room]}


def test_the_table_allows_nothing_that_no_file_imports() -> None:
    used = defaultdict(set)
    for path in FILES:
        used[room_of(path)] |= rooms_imported(path)
    unused = {room: set(lower) - used[room] for room, lower in ALLOWED.items()}
    assert not {room: lower for room, lower in unused.items() if lower}


@by_room
def test_files_and_folders_of_a_room_import_each_other_in_one_direction(room: str) -> None:
    needs: dict[str, set[str]] = {}
    for path in (PACKAGE / room).rglob("*.py"):
        own = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if own.endswith("__init__"):
            continue
        modules = {m.removeprefix("evenstep.") for m in imports_of(path)[1]}
        needs[own] = {m for m in modules if m.startswith(f"{room}.") and m != own}
    list(TopologicalSorter(needs).static_order())  # raises CycleError


@pytest.mark.parametrize("package", sorted(PACKAGE.rglob("__init__.py")), ids=name_of)
def test_a_folder_names_in_its_docstring_all_that_is_in_it(package: Path) -> None:
    text = ast.get_docstring(ast.parse(package.read_text())) or ""
    folders = [p.parent.name for p in package.parent.glob("*/__init__.py")]
    files = [p.stem for p in package.parent.glob("*.py") if not p.stem.startswith("__")]
    assert not [name for name in folders if f"{name}/" not in text]
    assert not [name for name in files if not re.search(rf"\b{name}\b", text)]


def test_no_public_class_has_the_name_of_another() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in FILES:
        for name in re.findall(r"^class ([^\W_]\w*)", path.read_text(), re.M):
            homes[name].append(name_of(path))
    assert not {name: paths for name, paths in homes.items() if len(paths) > 1}


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_no_pure_file_has_a_clock_an_accelerator_the_outside_world_or_unseeded_numbers(
    path: Path,
) -> None:
    assert not {module.split(".")[0] for module in imports_of(path)[0]} & IMPURE
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


def test_planning_loads_numpy_and_nothing_heavy() -> None:
    imports = ", ".join(f"evenstep.{room}" for room in ("errors", *PURE_ROOMS))
    script = f"import sys, {imports}; print(*[m for m in {HEAVY} if m in sys.modules])"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == []
