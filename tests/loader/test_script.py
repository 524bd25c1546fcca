"""Which scripts may be imported by another process: those that only define things."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from evenstep.loader.start.script import line_that_works

DEFINING = {
    "definitions": '''
        """A script."""
        from __future__ import annotations
        import os, sys
        import numpy as np
        import torch.nn as nn
        from dataclasses import dataclass, field
        from pathlib import Path

        SIZE, OTHER = 1 << 20, [1, *range(3)]
        ROOT = Path(__file__).resolve().parent / "data"
        HOST = os.environ.get("HOST", "here").split(".")[0]
        DEVICE = "cuda" if len(HOST) > 3 else "cpu"
        NAMES = {name: f"{name}-{i}" for i, name in enumerate(["a", "b"])}
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        sys.path.insert(0, str(ROOT))
        key = lambda row: print(row)
        total: int = 0
        total += 1
        assert SIZE > 0
        del OTHER

        def work(rows=SIZE, *, root: Path = ROOT) -> list[int]:
            for row in rows:
                print(row)
            with open("x") as file:
                train(file)

        @dataclass(frozen=True)
        class Options:
            """Options."""
            rows: list = field(default_factory=list)

            @property
            def size(self):
                return train()

            @size.setter
            def size(self, value): ...

            @staticmethod
            async def run(): await train()

        class Model(nn.Module, metaclass=type):
            pass
    ''',
    "guard": """
        if __name__ == "__main__":
            train()
    """,
    "turned guard": """
        if "__main__" == __name__:
            train()
        else:
            SIZE = 3
    """,
    "guard and more": """
        import sys
        if __name__ == "__main__" and len(sys.argv) > 1:
            train()
    """,
    "optional import": """
        try:
            import something
        except ImportError:
            something = None
        else:
            VERSION = something.__version__
    """,
}
WORKING = {
    "call": "train()",
    "print": "print('here')",
    "assigned call": "x = 1\nmodel = make()",
    "call in a value": "x = [1, {2: make()}]",
    "call in a default": "def f(x=make()): ...",
    "call in a keyword default": "def f(*, x=make()): ...",
    "call in an annotation": "def f(x: make()): ...",
    "call in a returned annotation": "def f() -> make(): ...",
    "call in a lambda's default": "f = lambda x=make(): x",
    "call in a subscript": "x = [1][make()]",
    "call in a format": "x = f'{make()}'",
    "call in a condition": "x = 1 if make() else 2",
    "decorator": "def f(g): ...\n@f\ndef h(): ...",
    "decorator, called": "from app import command\n@command()\ndef h(): ...",
    "method's decorator": "class A:\n    @make\n    def f(self): ...",
    "class body": "class A:\n    train()",
    "base": "class A(make()): ...",
    "keyword of a class": "class A(metaclass=make()): ...",
    "loop": "for row in rows: pass",
    "while": "while x: pass",
    "with": "with x: pass",
    "match": "match x:\n    case 1: train()",
    "raise": "raise SystemExit",
    "guard in part": "if __name__ == '__main__':\n    x = 1\ntrain()",
    "other branch": "if __name__ == '__main__':\n    pass\nelse:\n    train()",
    "elif": "if __name__ == '__main__':\n    pass\nelif x:\n    train()",
    "no guard": "if __name__ != '__main__':\n    train()",
    "guard or": "if __name__ == '__main__' or x:\n    train()",
    "guard of imports": "if __name__ == '__mp_main__':\n    train()",
    "either": "if __name__ in ('__main__', '__mp_main__'):\n    train()",
    "words of a guard": "if __name__ and '__main__':\n    train()",
    "compared twice": "if __name__ == '__main__' == x:\n    train()\n",
    "condition": "if x:\n    train()",
    "condition that works": "if train():\n    pass",
    "try": "try:\n    train()\nexcept ValueError:\n    pass",
    "handler": "try:\n    pass\nexcept ValueError:\n    train()",
    "finally": "try:\n    pass\nfinally:\n    train()",
    "own name of a builtin": "def sorted(x): train()\nsorted([1])",
    "own name of a module's": "import os\ndef f(): ...\nos = f\nos.getcwd()",
    "a name of two": "from pathlib import Path\nif x:\n    from mine import Path\nPath('x')",
    "method of a module": "import trainer\ntrainer.get()",
    "method of an import": "from trainer import runs\nruns.get()",
    "imported, iterated": "from trainer import loader\nx = list(loader)",
    "imported, comprehended": "from trainer import loader\nx = [row for row in loader]",
    "unknown method": "x = []\nx.sort()",
}


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


@pytest.mark.parametrize("name", DEFINING)
def test_scripts_that_only_define_things_may_be_imported(tmp_path: Path, name: str) -> None:
    assert line_that_works(script(tmp_path, DEFINING[name])) is None


@pytest.mark.parametrize("name", WORKING)
def test_whatever_is_not_known_to_be_harmless_counts_as_work(tmp_path: Path, name: str) -> None:
    path = script(tmp_path, WORKING[name])
    line = line_that_works(path)
    assert line is not None
    harmless = script(tmp_path, f"def f():\n{textwrap.indent(WORKING[name], '    ')}")
    assert line_that_works(harmless) is None


def test_the_first_line_is_named(tmp_path: Path) -> None:
    path = script(tmp_path, "import os\nclass A:\n    x = 1\n    train()\ntrain()\n")
    assert line_that_works(path) == 4
