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
    line: str
    """A part of it, in place of which is `instead`."""
    instead: str = "pass"
    near: int = 0
    """The seed to begin with: the first one to find it is not far."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        module = sys.modules[self.function.__module__]
        *owners, name = self.function.__qualname__.split(".")
        owner = functools.reduce(getattr, owners, module)
        before, made = vars(owner)[name], dict[str, Any]()
        source = textwrap.dedent(inspect.getsource(self.function))
        assert self.line in source, f"{self.name}: {self.function.__qualname__} has changed"
        mutated = source.replace(self.line, self.instead, 1)
        exec(compile(mutated, f"<{self.name}>", "exec"), vars(module), made)
        setattr(owner, name, made[name])
        try:
            yield
        finally:
            setattr(owner, name, before)
