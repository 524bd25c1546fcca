"""Deliberate faults: one line of the code is another one, and tests must find it."""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutation:
    name: str
    function: Callable[..., Any]
    """For a property, its getter."""
    change: str
    """A line of it, or a part of one, and what is there instead: ``right -> wrong``. A line by
    itself is left out."""
    near: int = 0
    """The seed to begin with: the first one to find it is not far."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        module = sys.modules[self.function.__module__]
        *owners, name = self.function.__qualname__.split(".")
        owner = functools.reduce(getattr, owners, module)
        before, made = vars(owner)[name], dict[str, Any]()
        source = textwrap.dedent(inspect.getsource(self.function))
        line, changed, instead = self.change.partition(" ->")
        assert line in source, f"{self.name}: {self.function.__qualname__} has changed"
        mutated = source.replace(line, instead[1:] if changed else "pass", 1)
        exec(compile(mutated, f"<{self.name}>", "exec"), vars(module), made)
        setattr(owner, name, made[name])
        try:
            yield
        finally:
            setattr(owner, name, before)
