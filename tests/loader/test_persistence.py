"""Persistent workers outlast a pass, however it ends, and are replaced when they die."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

import evenstep
from documents import Documents
from evenstep.errors import LoaderDiedError, SampleError
from loader_options import grouped

COUNT = 60
REFUSED = COUNT + 3
WITHOUT_CULPRIT = list(range(COUNT))
Make = Callable[..., evenstep.DataLoader]


class Fragile(Documents):
    """Fails, dies or hangs at what follows the last document."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == COUNT:
            raise OSError("torn")
        if index == COUNT + 1:
            os._exit(7)
        if index == COUNT + 2:
            time.sleep(30)
        return super().__getitem__(index)


def collate(samples: list[dict[str, Any]]) -> Any:
    if any(sample["identity"] == REFUSED for sample in samples):
        raise ValueError("not this one")
    return evenstep.PadCollator()(samples)


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes loaders, and closes them at the end."""
    OTHERS.update(everybody())
    with contextlib.ExitStack() as stack:

        def loader_with(sampler: list[int], **options: Any) -> evenstep.DataLoader:
            loader = evenstep.DataLoader(
                Fragile(REFUSED + 1),
                collate_fn=collate,
                sampler=sampler,
                batch_size=4,
                num_workers=2,
                multiprocessing_context="fork",
                persistent_workers=True,
                **grouped(buffer_size=16, **options),
            )
            stack.callback(loader.close)
            return loader

        yield loader_with
    assert everybody() == set()


OTHERS: set[int] = set()
"""Processes that were there before the test, of other files."""


def everybody() -> set[int]:
    """Batcher and workers; the resource tracker is neither."""
    children = psutil.Process().children(recursive=True)
    return {c.pid for c in children if "resource_tracker" not in " ".join(c.cmdline())} - OTHERS


def whole_pass(loader: evenstep.DataLoader) -> set[int]:
    """Makes a pass, checks that it is whole, and gives the processes that made it."""
    steps = loader.steps()
    seen = list(next(steps)[1].indices or ())
    processes = everybody()
    seen += [index for _, step in steps for index in step.indices or ()]
    assert seen == WITHOUT_CULPRIT
    return processes


def test_they_outlast_passes_that_are_left_early_or_fail(make: Make) -> None:
    sampler = list(WITHOUT_CULPRIT)
    loader = make(sampler)
    processes = whole_pass(loader)
    assert len(processes) == 3
    for _ in range(3):
        next(loader.steps())
    assert whole_pass(loader) == processes
    for culprit, said in ((COUNT, "torn"), (REFUSED, "cannot be collated.*not this one")):
        sampler[30:30] = [culprit]
        with pytest.raises(SampleError, match=said):
            list(loader.steps())
        sampler[:] = WITHOUT_CULPRIT
        assert whole_pass(loader) == processes


@pytest.mark.parametrize(
    ("culprit", "options", "said"),
    [(COUNT + 1, {}, "worker"), (COUNT + 2, {"timeout": 1}, "timed out")],
    ids=["exit", "timeout"],
)
def test_they_are_replaced_when_they_die_or_hang(
    make: Make, culprit: int, options: dict[str, Any], said: str
) -> None:
    sampler = list(WITHOUT_CULPRIT)
    loader = make(sampler, **options)
    processes = whole_pass(loader)
    sampler[30:30] = [culprit]
    with pytest.raises(LoaderDiedError, match=said):
        list(loader.steps())
    sampler[:] = WITHOUT_CULPRIT
    replaced = whole_pass(loader)
    assert len(replaced) == 3
    assert not replaced & processes
