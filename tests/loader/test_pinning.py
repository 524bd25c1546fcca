"""Pinning follows a batch through its containers, whatever their type."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from evenstep.loader.iterator import pin

Pair = namedtuple("Pair", ["left", "right"])


class Page:
    """Stands for a tensor, since a tensor can be pinned where there is an accelerator only."""

    def __init__(self, pinned: bool = False) -> None:
        self.pinned = pinned

    def pin_memory(self) -> Page:
        return Page(True)


@dataclass
class Record:
    page: Any
    note: str


@pytest.mark.parametrize(
    ("batch", "pages"),
    [
        (Page(), lambda b: [b]),
        ({"a": Page(), "b": [Page(), 3]}, lambda b: [b["a"], b["b"][0]]),
        (OrderedDict(a=(Page(), "text")), lambda b: [b["a"][0]]),
        (Pair(Page(), None), lambda b: [b.left]),
        (Record(Page(), "note"), lambda b: [b.page]),
    ],
    ids=["bare", "nested", "ordered", "named tuple", "dataclass"],
)
def test_all_that_can_be_pinned_is_and_the_rest_stays(batch: Any, pages: Any) -> None:
    pinned = pin(batch)
    assert type(pinned) is type(batch)
    assert all(page.pinned for page in pages(pinned))
    assert not any(page.pinned for page in pages(batch))


def test_what_cannot_be_pinned_is_returned_as_it_is() -> None:
    batch = {"text": ["a"], "number": 3, "kind": Record, "none": None}
    assert pin(batch) == batch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_tensors_are_pinned() -> None:
    assert pin({"x": torch.ones(3)})["x"].is_pinned()
