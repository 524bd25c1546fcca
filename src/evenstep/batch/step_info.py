"""`StepInfo`: what one rank knows about one step, its own share and that of all ranks.

`RankLoads` is what each rank computes before it waits for the others, in a step or an update.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.fit import Updates
from evenstep.plan.value_checks import plain_value
from evenstep.protocol.receipts import StepTotals
from evenstep.protocol.slow_ranks import SlowRank


@dataclass(frozen=True, kw_only=True, eq=False)
class RankLoads:
    """Float64 arrays [ranks]. Loads of steps after each other add up."""

    tokens: Float64Array
    """As computed: with padding."""
    pairs: Float64Array
    """Of tokens: rows x longest² in padded groups, the sum of squared lengths in packed ones. Of
    several padded micro-batches, as if they were alike."""
    patches: Float64Array
    groups: Float64Array
    cost: Float64Array
    vision_cost: Float64Array

    @classmethod
    def of(cls, totals: StepTotals, *, packed: bool, groups: int = 1) -> RankLoads:
        """Of one step.

        Args:
            groups: micro-batches of the step on each rank.
        """
        tokens = totals.padded_tokens.astype(np.float64)
        longest = totals.length_mean if packed else tokens / np.maximum(totals.samples, 1)
        return cls(
            tokens=tokens,
            pairs=tokens * longest,
            patches=totals.patches.astype(np.float64),
            groups=np.full(len(tokens), float(groups)),
            cost=totals.cost,
            vision_cost=totals.vision_cost,
        )

    def __add__(self, other: RankLoads) -> RankLoads:
        return RankLoads(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )


STEP_KEY = "evenstep_step"
"""Key of a mapping batch under which its StepInfo travels."""

_COUNTED = ["samples", "tokens", "padded_tokens", "supervised_tokens", "cost", "patches", "images"]
_VALUES = (
    *("epoch", "step", "rank", "world_size", "context_rank", "accumulate", "update", "micro_step"),
    *("ends_update", "filler", "loss_scale", "imbalance", "imbalance_measured", "padding"),
    *("too_long", *_COUNTED, *(f"global_{name}" for name in _COUNTED)),
)

_UNCOMPARED = dict.fromkeys(("imbalance", "imbalance_measured", "slow"))
"""They follow from the totals or, where ranks wait for an update, from where a pass began in it."""


def _own(name: str) -> Any:
    """A property: this rank's entry of a column of the totals."""
    return property(lambda step: getattr(step.totals, name)[step.rank].item())


def _of_all(name: str) -> Any:
    """A property: the sum of a column of the totals."""
    return property(lambda step: getattr(step.totals, name).sum().item())


class SourceCounts(NamedTuple):
    """What a step takes from one dataset of a mixture."""

    samples: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepInfo:
    """One step on one rank. Two are equal where all values are but imbalances."""

    epoch: int
    step: int
    """Counts from 0 in every epoch, equal on all ranks."""
    rank: int
    """Data-parallel rank, which all totals are counted by."""
    world_size: int
    """Data-parallel ranks."""
    filler: bool
    """Whether this rank had nothing left and runs a minimal batch with `loss_scale` 0."""
    indices: tuple[Any, ...] | None
    """Dataset indices of this rank's samples, in batch order; None for iterable datasets."""
    totals: StepTotals
    loss_scale: float
    """Multiply the loss by it before the backward pass; see `evenstep.batch.loss_scale`."""
    loss_scales: tuple[float, ...] = ()
    """The same for the loss of each micro-batch, where the batch is a list of them; 0 for a filler,
    which is run so that collectives match. Empty where a step is one batch."""
    accumulate: int = 1
    """Steps of an update: their gradients are added up before the optimizer steps."""
    counted: tuple[int, int] = (0, 0)
    """The step from which on updates have so many, and the updates before it."""
    too_long: int = 0
    """Samples of all ranks that were too long so far, in all passes and before a resume: those that
    were in a window or left out before it. See `evenstep.plan.too_long`."""
    ends_update: bool = True
    """Whether the optimizer steps after this one; also after the last of an epoch, whose last
    update may have fewer than `accumulate` steps."""
    loads: RankLoads | None = None
    """What the ranks compute in all steps of the update, where they wait at its end alone: see
    `Even.sync`. After a resume in the middle of an update, in those that are left of it."""
    imbalance_measured: float | None = None
    """`imbalance` in the time that this run's steps were measured to take. None until enough steps
    were measured, and where their times tell nothing. See `evenstep.loader.step_clock`."""
    slow: tuple[SlowRank, ...] | None = None
    """Ranks that need more time than their work explains, the slowest first. None until that was
    measured: see `evenstep.DataLoader.watch`."""
    names: tuple[str, ...] = ()
    """Of the datasets of a `Mixture`; none for any other."""
    context_rank: int = 0
    """Which shard of every micro-batch this is, where context-parallel ranks share them. Loss
    scales are those of the shard: for gradients averaged over all ranks of both kinds."""

    @property
    def update(self) -> int:
        """Number of the update in the epoch, from 0."""
        return Updates(self.accumulate, *self.counted).number(self.step)

    @property
    def micro_step(self) -> int:
        """Steps of the update before this one."""
        return Updates(self.accumulate, *self.counted).micro_step(self.step)

    samples = _own("samples")
    """Samples of this rank; the properties without `global` are all this rank's."""
    tokens = _own("tokens")
    padded_tokens = _own("padded_tokens")
    supervised_tokens = _own("supervised_tokens")
    cost = _own("cost")
    patches = _own("patches")
    """Vision patches; 0, as `images`, unless the policy counts them."""
    images = _own("images")
    """Images, videos and sounds."""
    global_samples = _of_all("samples")
    global_tokens = _of_all("tokens")
    global_padded_tokens = _of_all("padded_tokens")
    global_supervised_tokens = _of_all("supervised_tokens")
    global_cost = _of_all("cost")
    global_patches = _of_all("patches")
    global_images = _of_all("images")

    @property
    def waits(self) -> RankLoads | StepTotals:
        """What ranks compute between one wait for the others and the next."""
        return self.totals if self.loads is None else self.loads

    @property
    def ends_wait(self) -> bool:
        """Whether ranks wait for each other at the end of this step."""
        return self.loads is None or self.ends_update

    @property
    def sources(self) -> dict[str, SourceCounts]:
        """By name, what each dataset of a `Mixture` gives to this rank; empty for any other."""
        return self._by_source(self.totals.by_source[self.rank])

    @property
    def global_sources(self) -> dict[str, SourceCounts]:
        return self._by_source(self.totals.by_source.sum(axis=0))

    def _by_source(self, counts: Int64Array) -> dict[str, SourceCounts]:
        samples, tokens = counts.reshape(2, -1).tolist()
        return {name: SourceCounts(*each) for name, *each in zip(self.names, samples, tokens)}

    @property
    def imbalance(self) -> float:
        """Largest cost of a rank over the mean cost: 1.0 is perfect. Of the whole update, in each
        of its steps, where ranks wait at its end alone."""
        return _imbalance(self.waits.cost)

    @property
    def padding(self) -> float:
        """1 - real tokens / padded tokens, over all ranks."""
        padded = self.global_padded_tokens
        return 1.0 - self.global_tokens / padded if padded else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All values as JSON-able numbers, and the totals of each rank as lists."""
        return {
            **{name: getattr(self, name) for name in _VALUES},
            "slow": None if self.slow is None else [each._asdict() for each in self.slow],
            "indices": None if self.indices is None else [plain_value(i) for i in self.indices],
            "sources": _plain(self.sources),
            "global_sources": _plain(self.global_sources),
            "loss_scales": list(self.loss_scales),
            "per_rank": {f.name: getattr(self.totals, f.name).tolist() for f in fields(StepTotals)},
        }

    def scalars(self, prefix: str = "evenstep/") -> dict[str, float]:
        """What a logger shows of the step, of all ranks: ``wandb.log(step.scalars())``. Named as
        trainers' integrations log the same: see docs/diagnose.md."""
        values = {
            "padding": self.padding,
            "imbalance": self.imbalance,
            "tokens_per_step": self.global_tokens,
        }
        if self.imbalance_measured is not None:
            values["imbalance_measured"] = self.imbalance_measured
        if self.slow is not None:
            values["slow_share"] = max((each.share for each in self.slow), default=0.0)
            values["slow_rank"] = self.slow[0].rank if self.slow else -1
        if self.global_images:
            values["images_per_step"] = self.global_images
            values["patches_per_step"] = self.global_patches
        return {f"{prefix}{name}": float(value) for name, value in values.items()}

    def to_line(self) -> dict[str, Any]:
        """What `evenstep.run_log` writes of the step: all ranks together, JSON-able."""
        moments = self.totals.moments.together()
        names = ["samples", "tokens", "padded_tokens", "cost"]
        if self.global_images:
            names += ["patches", "images"]
        return {
            "step": self.step,
            "epoch": self.epoch,
            **{name: getattr(self, f"global_{name}") for name in names},
            "imbalance": self.imbalance,
            "imbalance_measured": self.imbalance_measured,
            **({} if self.slow is None else {"slow": [each._asdict() for each in self.slow]}),
            **({"sources": _plain(self.global_sources)} if self.names else {}),
            **({"too_long": self.too_long} if self.too_long else {}),
            "ends_update": self.ends_update,
            "moments": {each.name: float(getattr(moments, each.name)) for each in fields(moments)},
        }

    def __eq__(self, other: object) -> bool:
        # Not generated, because comparing the totals gives arrays.
        if not isinstance(other, StepInfo):
            return NotImplemented
        mine, theirs = (one.to_dict() for one in (self, other))
        return {**mine, **_UNCOMPARED} == {**theirs, **_UNCOMPARED}

    __hash__ = None  # type: ignore[assignment]


def _plain(sources: Mapping[str, SourceCounts]) -> dict[str, Any]:
    return {name: each._asdict() for name, each in sources.items()}


def _imbalance(costs: Float64Array) -> float:
    mean = float(costs.mean())
    return float(costs.max()) / mean if mean > 0 else 1.0


def attach_step(batch: Any, step: StepInfo) -> bool:
    """Puts `step` into a mutable mapping, or into the first of a list of micro-batches; for any
    other batch, does nothing and returns False.

    Raises:
        ConfigurationError: the batch has something else under `STEP_KEY`.
    """
    if step.loss_scales and isinstance(batch, list):
        batch = batch[0]
    if not isinstance(batch, MutableMapping):
        return False
    if STEP_KEY in batch:
        raise ConfigurationError(
            f"the collated batch has a field {STEP_KEY!r} already; rename it in collate_fn"
        )
    batch[STEP_KEY] = step
    return True


def pop_step(batch: Any) -> StepInfo:
    """Removes the StepInfo from a batch, or list of micro-batches, of evenstep's loader and returns
    it.

    Raises:
        ConfigurationError: the batch is not a mapping, or has no StepInfo.
    """
    if isinstance(batch, list) and batch and isinstance(batch[0], MutableMapping):
        batch = batch[0]
    if not isinstance(batch, MutableMapping):
        kind = "an immutable" if isinstance(batch, Mapping) else "not a mapping but a"
        raise ConfigurationError(
            f"the batch is {kind} {type(batch).__name__} and cannot carry a StepInfo; iterate over "
            "loader.steps(), which yields (batch, step)"
        )
    step = batch.pop(STEP_KEY, None)
    if not isinstance(step, StepInfo):
        raise ConfigurationError(
            f"the batch, with fields {list(batch)}, has no StepInfo: it was popped already, or "
            "rebuilt; pop it once, first thing, or iterate over loader.steps()"
        )
    return step
