"""Releases of other packages that evenstep was tested with: one table, by which integrations warn,
``evenstep doctor`` looks, and docs/versions.md promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple


class TestedReleases(NamedTuple):
    """All between two releases, both included. Only the numbers that are given count, so that a
    newest "5.23" includes 5.23.4."""

    oldest: str
    newest: str

    def side(self, release: str) -> Literal["", "older", "newer"]:
        """On which side of these a release is; empty if it is one of them."""
        numbers, last = _numbers(release), _numbers(self.newest)
        if numbers < _numbers(self.oldest):
            return "older"
        return "newer" if numbers[: len(last)] > last else ""

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}"


TESTED: Mapping[str, TestedReleases] = {
    "python": TestedReleases("3.10", "3.15"),
    "torch": TestedReleases("2.9", "2.15"),
    "numpy": TestedReleases("1.26", "2.5"),
    "pyarrow": TestedReleases("15", "26"),
    "pyzmq": TestedReleases("25.1", "27"),
    "ray": TestedReleases("2.9", "2.60"),
    "accelerate": TestedReleases("0.30", "1.15"),
    "axolotl": TestedReleases("0.19", "0.19"),
    "datasets": TestedReleases("4.7", "5.2"),
    "deepspeed": TestedReleases("0.19", "0.19"),
    "lightning": TestedReleases("2.5", "2.6"),
    "llamafactory": TestedReleases("0.9.5", "0.9.5"),
    "megatron-core": TestedReleases("0.16", "0.16"),
    "torchtitan": TestedReleases("0.3", "0.3"),
    "transformers": TestedReleases("4.57", "5.24"),
    "trl": TestedReleases("1.9", "1.16"),
    "verl": TestedReleases("0.9.1", "0.9"),
}
"""By name on PyPI."""


def _numbers(release: str) -> tuple[int, ...]:
    """The leading numbers of a release: (5, 23, 0) of "5.23.0.dev1"."""
    numbers = []
    for part in release.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)
