"""Whole epochs of several ranks under each policy, as lists of groups; and some of their steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

import evenstep
from benchmarks.gpu.model import Config
from evenstep.arrays import Int64Array
from evenstep.cost import Cost, GroupShapes, PaddedTokenCost
from evenstep.plan.policy import Policy
from evenstep.tools.simulate.distributions import sample_lengths
from evenstep.tools.simulate.run import deal, run_epoch
from evenstep.tools.simulate.yardsticks import Yardstick


@dataclass(frozen=True, kw_only=True)
class Texts:
    """What is trained on."""

    name: str
    distribution: str
    samples: int
    max_tokens: int
    longest: int
    ranks: int
    batch_size: int = 8
    scale: int = 1
    """By which lengths are divided, to try it on the CPU; the limits above are so already."""

    @property
    def lengths(self) -> Int64Array:
        drawn = sample_lengths(self.distribution, self.samples) // self.scale
        return np.maximum(drawn[drawn <= self.longest], 1)

    def scaled(self, scale: int) -> Texts:
        return replace(
            self,
            samples=self.samples // scale,
            max_tokens=self.max_tokens // scale,
            longest=self.longest // scale,
            scale=scale,
        )


CHAT = Texts(
    name="chat",
    distribution="sharegpt4o",
    samples=20_000,
    max_tokens=16_384,
    longest=8192,
    ranks=8,
)
MANY = replace(CHAT, samples=60_000, ranks=64)
LONG = Texts(
    name="long documents",
    distribution="pretrain-128k",
    samples=8000,
    max_tokens=32_768,
    longest=32_768,
    ranks=8,
    batch_size=2,
)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Under one policy."""

    batches: str
    policy: Policy
    steps: list[list[list[int]]]
    """[steps, ranks, samples] lengths; no sample where a rank has none left."""

    @property
    def packed(self) -> bool:
        return self.policy.packed

    @property
    def padding(self) -> float:
        real = sum(sum(group) for step in self.steps for group in step)
        return 1 - real / self.costs(PaddedTokenCost()).sum()

    def costs(self, cost: Cost) -> np.ndarray:
        """[steps, ranks]"""
        groups = [group for step in self.steps for group in step]
        filled = [group for group in groups if group]
        offsets = np.cumsum([0, *map(len, filled)])
        shapes = GroupShapes.measure(np.concatenate(filled), offsets)
        found = np.zeros(len(groups))
        found[[bool(group) for group in groups]] = cost(shapes, packed=self.packed)
        return found.reshape(len(self.steps), -1)

    def some(self, seed: int) -> list[list[list[int]]]:
        """All steps, in random order: as many as there is time for stand for the epoch."""
        return [self.steps[i] for i in np.random.default_rng(seed).permutation(len(self.steps))]


def imbalance(seconds: np.ndarray) -> float:
    """Of [steps, ranks]: 1 where all ranks are equally busy."""
    return float(seconds.max(1).sum() / seconds.mean(1).sum())


def policies(texts: Texts, cost: Cost) -> Iterator[tuple[str, Policy]]:
    """With `evenstep.cost_of` the model, as trainers get it, and what else people use."""
    most, size = texts.max_tokens, texts.batch_size
    even = evenstep.Even(most, cost=cost)
    if texts.longest < most:
        yield f"fixed batches of {size}", evenstep.FixedBatch(size)
        yield f"`group_by_length`, {size}", Yardstick(kind="length-grouped", batch_size=size)
        yield "ODB's rule", evenstep.TokenBudget(most, spread=False)
        yield "`Even`", even
    yield "best-fit packing", evenstep.SequencePacking(most)
    yield "`Even`, packed", evenstep.Even(most, packed=True, cost=cost)


def epochs(texts: Texts, config: Config) -> Iterator[Epoch]:
    lengths = texts.lengths
    for name, policy in policies(texts, evenstep.cost_of(config)):
        shares = deal(len(lengths), texts.ranks)
        run = run_epoch(policy, [lengths[share] for share in shares], identities=shares)
        of_ranks = [
            [[] if step.filler else rank.rows[0][step.members].tolist() for step in rank.steps]
            for rank in run.ranks
        ]
        yield Epoch(batches=name, policy=policy, steps=[list(step) for step in zip(*of_ranks)])
