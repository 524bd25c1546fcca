"""A function is known by what it does: its code, constants and the values that it uses."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evenstep.data.pickling import code_digest, same_code

BEFORE = """
import functools

LIMIT = 512
_cache = {}

def clean(text):
    return text.strip()

def transform(sample, low=0):
    _cache[1] = 2
    return [clean(each)[:LIMIT] for each in sample["text"]][low:]

def made(length):
    def inner(sample):
        return sample[:length]
    return inner

class Tokenize:
    sep = "x"
    def __init__(self, length):
        self.length = length
    def __call__(self, sample):
        return sample[: self.length] + self.sep

closure = made(5)
bound = Tokenize(5).__call__
instance = Tokenize(5)
part = functools.partial(transform, low=1)
short = lambda sample: sample["text"]
"""
NAMES = ("transform", "closure", "bound", "instance", "part", "short")


def built(text: str) -> ModuleType:
    module = ModuleType("corpus_transforms")
    exec(compile(text, "corpus_transforms.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("    return [clean", "    # more\n    return [clean", ""),
        ("def transform", "\n\n# one\ndef transform", ""),
        ("def made(length):\n", 'def made(length):\n    """Makes."""\n', ""),
        ("_cache = {}", "_cache = {3: 4}", ""),
        ("text.strip()", "text.lower()", ""),
        ("LIMIT = 512", "LIMIT = 256", ""),
        ("low=0", "low=2", "transform part"),
        ("low=1", "low=2", "part"),
        ('sample["text"]][low', 'sample["words"]][low', "transform part"),
        ("made(5)", "made(6)", "closure"),
        ("Tokenize(5)", "Tokenize(6)", "bound instance"),
        ("+ self.sep", "* 2", "bound instance"),
        (': sample["text"]', ': sample["words"]', "short"),
    ],
)
def test_a_function_whose_work_changes_has_another_digest(old: str, new: str, changed: str):
    assert old in BEFORE
    before, after = built(BEFORE), built(BEFORE.replace(old, new))
    names = ["transform", "closure", "bound", "instance", "part", "short"]
    found = [n for n in names if code_digest(getattr(before, n)) != code_digest(getattr(after, n))]
    assert set(found) == set(changed.split())


def test_digests_are_equal_wherever_functions_are_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "corpus_transforms.py").write_text(BEFORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("corpus_transforms")
    found = [code_digest(getattr(module, name)) for name in NAMES]
    assert len(set(found)) == len(NAMES)
    program = f"""
import corpus_transforms
from evenstep.data.pickling import code_digest
print(*[code_digest(getattr(corpus_transforms, name)) for name in {NAMES}])
"""
    environment = {**os.environ, "PYTHONHASHSEED": "2", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert printed.decode().split() == found
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    sent = cloudpickle.dumps([getattr(module, name) for name in NAMES])
    monkeypatch.delitem(sys.modules, "corpus_transforms")
    assert [code_digest(each) for each in pickle.loads(sent)] == found


def test_a_transform_may_name_itself():
    def transform(sample: Any) -> Any:
        return sample

    found = code_digest(transform)
    assert found == code_digest(transform)
    name, _, _ = found.rsplit(":", 2)
    assert same_code(f"{name}:3.1:{'0' * 16}", found), "of another version of Python"
    assert not same_code(f"other{name}:3.1:{'0' * 16}", found)
    assert not same_code(found[:-1] + ("0" if found[-1] != "0" else "1"), found)
    transform.fingerprint = "tokenizer 3"  # type: ignore[attr-defined]
    assert code_digest(transform) == "tokenizer 3"
