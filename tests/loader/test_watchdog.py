"""`timeout` without workers: whatever of the user's code hangs is named, and where it hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

import evenstep
from documents import Documents
from evenstep.errors import LoaderDiedError
from loader_options import grouped

LIMIT = 0.4


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Set at the end of a test, or before: what hangs then goes on."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hang_here(over: threading.Event) -> Callable[[], None]:
    """Hangs in every call after the twentieth."""
    calls = 0

    def hang_here() -> None:
        nonlocal calls
        calls += 1
        if calls > 20:
            over.wait(60)

    return hang_here


class Mapped(Documents):
    def __init__(self, hang: Callable[[], None]) -> None:
        super().__init__(100)
        self.hang = hang

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.hang()
        return super().__getitem__(index)


class Batched(Mapped):
    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


class Streamed(IterableDataset):  # type: ignore[type-arg]
    def __init__(self, hang: Callable[[], None]) -> None:
        self.hang = hang

    def __iter__(self) -> Iterator[dict[str, Any]]:
        documents = Documents(100)
        for index in range(100):
            self.hang()
            yield documents[index]


def build(where: str, hang: Callable[[], None]) -> tuple[Any, dict[str, Any]]:
    """A dataset and options of which a part hangs."""

    def measured(sample: dict[str, Any]) -> int:
        hang()
        return len(sample["input_ids"])

    def collate(samples: list[Any]) -> list[Any]:
        for _ in samples:
            hang()
        return samples

    def order() -> Iterator[int]:
        for index in range(100):
            hang()
            yield index

    class Order:
        def __iter__(self) -> Iterator[int]:
            return order()

    documents = Documents(100)
    return {
        "sample": (Mapped(hang), {}),
        "samples": (Batched(hang), {}),
        "stream": (Streamed(hang), {}),
        "measure": (documents, {"length_fn": measured}),
        "collate": (documents, {"collate_fn": collate, "loss_scaling": "none"}),
        "sampler": (documents, {"sampler": Order()}),
    }[where]


@pytest.mark.parametrize(
    ("where", "says", "function"),
    [
        ("sample", "sample 20 ", "__getitem__"),
        ("samples", "one of sample 16, sample 17, ", "__getitems__"),
        ("stream", "the dataset, after 16 samples,", "__iter__"),
        ("measure", "the measuring of one of sample 16, ", "measured"),
        ("collate", "collate_fn at step ", "collate"),
        ("sampler", "the sampler ", "order"),
    ],
)
@pytest.mark.timeout(60)
def test_a_call_that_hangs_is_named_with_where_it_hangs(
    hang_here: Callable[[], None], over: threading.Event, where: str, says: str, function: str
) -> None:
    dataset, options = build(where, hang_here)
    loader = evenstep.DataLoader(
        dataset, batch_size=4, timeout=LIMIT, group="local", **grouped(chunk_size=8, **options)
    )
    began = time.monotonic()
    with pytest.raises(LoaderDiedError, match=f"rank 0: {says}.* over timeout=0.4") as caught:
        list(loader)
    assert time.monotonic() - began >= LIMIT
    stacks = str(caught.value.__cause__)
    assert "in hang_here" in stacks
    assert f"in {function}\n" in stacks
    if where != "sample":  # one call hangs on while the loader is closed, which takes some seconds
        over.set()
    loader.close()
    assert time.monotonic() - began < 10


@pytest.mark.timeout(60)
def test_a_trainer_may_take_its_time() -> None:
    loader = evenstep.DataLoader(Documents(40), batch_size=4, timeout=LIMIT, group="local")
    for number, _ in enumerate(loader):
        time.sleep(2 * LIMIT if number == 2 else 0)
    assert number == 9
