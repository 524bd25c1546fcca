"""Which samples of a group keep it from being collated: found by collating few of them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

Collate = Callable[[list[Any]], Any]

_PATIENCE = 10.0  # seconds
_REFERENCES = 3
"""Samples with which the others are tried, as the first one may be the misfit."""


def misfits(collate: Collate, samples: Sequence[Any]) -> dict[int, BaseException]:
    """By position, the samples that cannot be collated, and what was raised.

    Those are the samples that cannot be collated alone, if others can, or that cannot be collated
    with a sample with which most others can. None where that does not tell, takes too long, or all
    samples can be collated.
    """
    until = time.monotonic() + _PATIENCE
    good = list(range(len(samples)))
    found = _failing(collate, [[sample] for sample in samples], until)
    if len(found) == len(samples):  # it takes no sample alone
        found = {}
    good = [place for place in good if place not in found]
    for reference in good[:_REFERENCES]:
        others = [place for place in good if place != reference]
        pairs = [[samples[reference], samples[place]] for place in others]
        failing = _failing(collate, pairs, until)
        if 2 * len(failing) <= len(others):
            found |= {others[number]: error for number, error in failing.items()}
            break
    return {} if time.monotonic() > until else found


def _failing(
    collate: Collate, groups: Sequence[list[Any]], until: float
) -> dict[int, BaseException]:
    """By position, what `collate` raises for groups; the first ones, if time runs out."""
    found: dict[int, BaseException] = {}
    for place, group in itertools.takewhile(lambda _: time.monotonic() < until, enumerate(groups)):
        try:
            collate(group)
        except Exception as error:
            found[place] = error
    return found
