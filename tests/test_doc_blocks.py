"""Code in the docs: names are imported or defined before they are used on a page, what is imported
or called exists with those arguments, and blocks that need nothing of a user's run as they are."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
YOURS = set(
    re.findall(
        r"\w+",
        """
        dataset code chat documents pairs prompts rollouts sources data folder path batch total
        model tower optimizer tokenizer collate device device_type rank ranks world_size epochs lr
        args reward save train tokenize average_gradients policy_loss lengths supervised values
        flops vit writer n step address context loader job provider query key value attention
        metadata mixture varlen_attention gathered_keys gathered_values
        """,
    )
)
"""Names that stand for what a reader has."""


OURS = ("evenstep", "torch", "numpy")


class Block(NamedTuple):
    page: Path
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in re.finditer(r"^( *)```python[^\n]*\n(.*?)^ *```", text, re.M | re.S):
        code = "".join(line[len(found[1]) :] or "\n" for line in found[2].splitlines(True))
        yield Block(page, text[: found.start()].count("\n") + 1, code)


def undefined(code: str) -> set[str]:
    """Names that a block reads and neither it nor Python defines."""
    tree = ast.parse(code)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    made = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(each.asname or each.name).partition(".")[0] for each in node.names}
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return {node.id for node in names} - made - vars(builtins).keys()


def imports(code: str) -> Iterator[tuple[str, ast.Import | ast.ImportFrom]]:
    """Modules that a block imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield str(getattr(node, "module", None) or node.names[0].name), node


def imported(code: str) -> dict[str, Any]:
    """What a block imports of evenstep and torch; None in place of what else it does."""
    space: dict[str, Any] = {}
    for module, node in imports(code):
        space |= {each.asname or each.name: None for each in node.names}
        if module.startswith(OURS) and "verl" not in ast.unparse(node):
            exec(compile(ast.Module([node], []), "docs", "exec"), space)
    return space


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_are_imported_or_defined_before_they_are_used(page: Path) -> None:
    defined = set(YOURS)
    for block in blocks_of(page):
        assert not undefined(block.code) - defined, f"{block} uses what the page has not defined"
        defined |= {
            node.id for node in ast.walk(ast.parse(block.code)) if isinstance(node, ast.Name)
        }
        defined |= imported(block.code).keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_called_exists_and_takes_these_arguments(page: Path) -> None:
    space: dict[str, Any] = {}
    for block in blocks_of(page):
        space |= imported(block.code)
        for node in ast.walk(ast.parse(block.code)):
            if not isinstance(node, ast.Call):
                continue
            path = ast.unparse(node.func)
            first = path.partition(".")[0]
            if not path.replace(".", "").isidentifier() or space.get(first) is None:
                continue
            called = eval(path, space)
            if not str(getattr(called, "__module__", "")).startswith("evenstep"):
                continue
            taken = inspect.signature(called).parameters
            if any(each.kind is each.VAR_KEYWORD for each in taken.values()):
                continue
            for keyword in node.keywords:
                assert keyword.arg is None or keyword.arg in taken, (
                    f"{block}: {path}({keyword.arg}=)"
                )


WHOLE = [
    block
    for page in PAGES[:-1]  # README's runs in test_docs
    for block in blocks_of(page)
    if not undefined(block.code) and all(m.startswith(OURS) for m, _ in imports(block.code))
]


def test_blocks_that_need_nothing_of_a_user_run_as_they_stand(tmp_path: Path) -> None:
    """Each in a namespace of its own, as the main script."""
    lines = ["import runpy"]
    for number, block in enumerate(WHOLE):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block.code)
        lines += [f"print({str(block)!r})", f"runpy.run_path({str(script)!r}, run_name='__main__')"]
    (tmp_path / "all.py").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "all.py"], cwd=tmp_path, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_name_that_is_missing_is_found() -> None:
    assert undefined("import torch\nfor x in dataset:\n    torch.sum(x + y)\n") == {"dataset", "y"}
