"""Checks for your own datasets, samplers, collate functions and policies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from evenstep.batch.step_info import StepInfo
from evenstep.loader.dataloader import DataLoader


def assert_exact_resume(
    make_loader: Callable[[], DataLoader], *, epochs: int = 1, every: int = 1
) -> int:
    """Saves a loader's state after every step, and asserts that a new loader that loads it yields
    the same remaining batches, in the same order and with equal content.

    Under torch.distributed, call it on every rank at the same time with the same arguments, because
    all ranks save and load at the same steps. Batches of filler steps, for which a rank has no
    samples left, are not compared: they are trained on with ``loss_scale`` 0.

    Args:
        make_loader: builds the loader, the same at every call; with workers if you use workers.
        epochs: epochs to check; with two or more, the change from one to the next is checked too.
        every: saves after every `every` steps, if checking all would take too long.

    Returns:
        The number of states from which the loader was resumed.

    Raises:
        AssertionError: with the first step that differs.
    """
    whole, states = _run_saving(make_loader, epochs)
    resumed = 0
    for saved in range(0, len(states), every):
        loader = make_loader()
        # A state must survive JSON.
        loader.load_state_dict(json.loads(json.dumps(states[saved])))
        again = json.loads(json.dumps(loader.state_dict()))
        assert again == states[saved], f"loading changed the state saved after {saved} steps"
        rest = [item for _ in range(loader.epoch, epochs) for item in loader.steps()]
        loader.close()
        _compare(rest, whole[saved:], saved)
        resumed += 1
    return resumed


def _run_saving(
    make_loader: Callable[[], DataLoader], epochs: int
) -> tuple[list[tuple[Any, StepInfo]], list[dict[str, Any]]]:
    """All steps, and the state before each and after the last."""
    loader = make_loader()
    states = [json.loads(json.dumps(loader.state_dict()))]
    steps: list[tuple[Any, StepInfo]] = []
    for _ in range(epochs):
        for batch, step in loader.steps():
            steps.append((_copied(batch), step))
            states.append(json.loads(json.dumps(loader.state_dict())))
    loader.close()
    assert steps, "the loader yields no step, so there is nothing to resume"
    keys = {tuple(sorted(state)) for state in states}
    assert len(keys) == 1, f"the keys of the state change: {sorted(keys)}"
    return steps, states


def _compare(
    rest: Sequence[tuple[Any, StepInfo]], expected: Sequence[tuple[Any, StepInfo]], saved: int
) -> None:
    where = f"resumed after {saved} steps"
    for number, ((batch, step), (other, expected_step)) in enumerate(zip(rest, expected), saved):
        at = f"{where}, step {number}"
        assert step == expected_step, (
            f"{at} is {step.to_dict()}, and would have been {expected_step.to_dict()}"
        )
        if not step.filler:
            difference = _difference(batch, other)
            assert difference is None, f"{at}: {difference}"
    assert len(rest) == len(expected), (
        f"{where}: {len(rest)} steps follow, and {len(expected)} would have followed"
    )


def _copied(value: Any) -> Any:
    """A copy of the batch, since a trainer may change it and its memory is reused."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item) for item in value]
    return value


def _difference(one: Any, other: Any, path: str = "batch") -> str | None:
    """The first difference of two batches; None where they are equal."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        return None if same and torch.equal(one, other) else f"{path} differs: {one} and {other}"
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        same = one.dtype == other.dtype and np.array_equal(one, other)
        return None if same else f"{path} differs: {one} and {other}"
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        pairs = [
            (f".{f.name}", getattr(one, f.name), getattr(other, f.name))
            for f in dataclasses.fields(one)
        ]
    elif isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys():
        pairs = [(f"[{key!r}]", one[key], other[key]) for key in one]
    elif isinstance(one, (list, tuple)) and len(one) == len(other):
        pairs = [(f"[{i}]", a, b) for i, (a, b) in enumerate(zip(one, other))]
    else:
        return None if one == other else f"{path} differs: {one!r} and {other!r}"
    differences = (_difference(a, b, path + name) for name, a, b in pairs)
    return next((d for d in differences if d is not None), None)
