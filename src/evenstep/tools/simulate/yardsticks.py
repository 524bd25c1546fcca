"""Batches that others form from all lengths of a data set: yardsticks for policies, which see a
window.

Each function returns for every rank its groups of positions in `lengths`, in the order of steps,
equally many on all ranks. Every sample is on some rank, none twice on the same one. Only what
wrap-around repeats is trained on twice: fewer than one batch, or sample, per rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost, MemoryLimit
from evenstep.plan.groups import Groups
from evenstep.plan.policies.by_name import POLICIES, NamedPolicy
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least, plain_value


def length_grouped(lengths: Int64Array, ranks: int, seed: int, batch_size: int) -> list[Groups]:
    """Batches of one size as ``group_by_length`` of Hugging Face makes them (ODB, App. J: HFG).

    A permutation is cut into megabatches, each is sorted, longest first, and rank r of W takes
    every W-th sample from the r-th on. So a step's batches together are ``W * batch_size``
    neighbours. Not done is to move the longest sample to the front, which pads one batch more.
    """
    count = len(lengths)
    permutation = generator(seed, 0, RandomStream.LENGTH_GROUPED_ORDER).permutation(count)
    order = sorted_runs(permutation, -lengths, megabatch(count, batch_size))
    return [_batches(order[turns], batch_size) for turns in _turns(count, ranks)]


def megabatch(count: int, batch_size: int) -> int:
    """Samples that are sorted together: 50 batches, or fewer, that there are four such at least."""
    return max(min(count // (batch_size * 4), 50), 1) * batch_size


def max_tokens(lengths: Int64Array, ranks: int, seed: int, limit: int) -> list[Groups]:
    """Full batches of the whole data set, from short to long (fairseq; ODB, App. I: GMT).

    Args:
        limit: ``samples * longest`` of a batch, at most; a longer sample is one by itself.
    """
    return _shares(filled(np.argsort(lengths, kind="stable"), lengths, limit, len(lengths)), ranks)


def bucketed_max_tokens(
    lengths: Int64Array, ranks: int, seed: int, limit: int, *, bucket: int = 8192
) -> list[Groups]:
    """Full batches of like length from buckets of a permutation, in random order (ODB, App. I:
    BMT).

    Args:
        limit: as for `max_tokens`.
        bucket: samples, over all ranks. 8,192 make 0.1 to 0.4 % more batches than `max_tokens` on
            the named distributions, and half as many samples double that.
    """
    draw = generator(seed, 0, RandomStream.MAX_TOKENS_ORDER)
    order = sorted_runs(draw.permutation(len(lengths)), lengths, bucket)
    batches = filled(order, lengths, limit, bucket)
    return _shares(batches.take(draw.permutation(len(batches))), ranks)


def sorted_runs(order: Int64Array, keys: Int64Array, run: int) -> Int64Array:
    """`order`, with each `run` of consecutive positions sorted by key; ties stay as they were."""
    return order[np.lexsort((keys[order], np.arange(len(order)) // run))]


def filled(order: Int64Array, lengths: Int64Array, limit: int, run: int) -> Groups:
    """Batches that each take as many of the next samples as fit; none holds samples of two runs.

    Args:
        order: ascending in length within each `run`.
    """
    begin, offsets = 0, [0]
    for place, length in enumerate(lengths[order].tolist()):
        if place > begin and (place % run == 0 or (place + 1 - begin) * length > limit):
            offsets.append(place)
            begin = place
    return Groups(order, np.array([*offsets, len(order)], np.int64))


def _batches(order: Int64Array, batch_size: int) -> Groups:
    starts = np.arange(0, len(order), batch_size, dtype=np.int64)
    return Groups(order, np.append(starts, len(order)))


def _shares(batches: Groups, ranks: int) -> list[Groups]:
    """Deals batches out: rank r of W takes every W-th from the r-th on."""
    return [batches.take(turns) for turns in _turns(len(batches), ranks)]


def _turns(count: int, ranks: int) -> list[Int64Array]:
    """For each rank, which of `count` samples or batches it takes; the leading ones come again."""
    padded = np.arange(-(-count // ranks) * ranks, dtype=np.int64) % count
    return [padded[rank::ranks] for rank in range(ranks)]


_FORMS = {
    "length-grouped": (length_grouped, "group_by_length of Hugging Face."),
    "max-tokens": (max_tokens, "full batches, shortest first (GMT)."),
    "bucketed-max-tokens": (bucketed_max_tokens, "full batches of like length (BMT)."),
}


@dataclass(frozen=True, kw_only=True)
class Yardstick(Policy):
    """What one of the functions above forms, trained on as a policy's groups are: for `simulate`
    alone."""

    kind: str
    """A key of `YARDSTICKS`."""
    batch_size: int | None = None
    max_tokens: int | None = None
    """The one that the function takes is given."""
    cost: Cost = UNKNOWN_MODEL
    groups: Groups = field(default_factory=Groups.empty, repr=False, compare=False)
    """Those of one rank, once `dealt`."""
    largest: int = field(default=1, repr=False, compare=False)
    """Samples of the largest group of any rank."""

    looks_ahead = False

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size, max_tokens=self.max_tokens)

    def dealt(self, lengths: Int64Array, ranks: int, seed: int) -> list[Yardstick]:
        """For each rank the policy that makes steps of its groups."""
        size = self.batch_size or self.max_tokens or 1
        form, _ = _FORMS[self.kind]
        formed = form(lengths, ranks, seed, size)
        largest = max(int(groups.sizes.max()) for groups in formed)
        return [replace(self, groups=groups, largest=largest) for groups in formed]

    @property
    def name(self) -> str:
        return self.kind

    @property
    def max_length(self) -> None:
        return None  # a longer sample is a group by itself

    @property
    def limit(self) -> MemoryLimit | None:
        return None if self.max_tokens is None else MemoryLimit(max_tokens=self.max_tokens)

    def options(self) -> Mapping[str, Any]:
        given = {"batch_size": self.batch_size, "max_tokens": self.max_tokens, "cost": self.cost}
        return {name: plain_value(value) for name, value in given.items() if value is not None}

    def window_size(self, buffer_size: int) -> int:
        return max(buffer_size, self.largest)

    def propose(self, window: Window) -> Proposal:
        """The groups that are whole, of those that no step had."""
        ends = self.groups.offsets[window.step :] - self.groups.offsets[window.step]
        offsets = ends[: np.searchsorted(ends, len(window), side="right")]
        groups = Groups(np.arange(offsets[-1]), offsets)
        return Proposal(np.array([len(groups)], np.int64), groups, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        return Plan(proposal.groups.take(np.arange(messages[:, 0].min())))


YARDSTICKS: Mapping[str, NamedPolicy] = {
    kind: NamedPolicy(
        partial(Yardstick, kind=kind),
        f"Yardstick: {summary}",
        ("max_tokens" if "tokens" in kind else "batch_size",),
    )
    for kind, (_, summary) in _FORMS.items()
}
COMPARED: Mapping[str, NamedPolicy] = {**POLICIES, **YARDSTICKS}
"""All that ``evenstep simulate`` and ``evenstep advise`` run over lengths."""
