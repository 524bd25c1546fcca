"""What advice says besides: of samples longer than a step, and of the learning rate.

Samples that take longer than any full group are groups by themselves, which other ranks meet with
their like or wait for: see `evenstep.plan.policies.even.timed`. How much of the time they are, and
what helps: each remedy is tried on one epoch.

Whether the learning rate can stay, and what two common rules give if updates hold more tokens, are
hints that nothing applies: only training shows which rule holds, if any.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenstep.cost import Cost
from evenstep.plan.policies.even.packed_round import full_group
from evenstep.plan.policies.even.timed import counts
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.predict import Build, Prediction, predict_once
from evenstep.tools.advise.recommend import Setup

_SHARE = 0.01
"""Of all time, below which dear samples are not worth a note."""
_UPDATES = 4
"""Times as many tokens in an update: about as many steps."""
_FIGURES = "imbalance {imbalance:.3f}, composition {composition:.2f}"


def dear_note(
    builders: Mapping[str, Build],
    length_sample: LengthSample,
    *,
    setup: Setup,
    chosen: Prediction,
    cost: Cost,
    **world: int,
) -> Iterator[str]:
    """One note, or none.

    Args:
        builders: all policies by name, of which `chosen` is recommended.
        world: other arguments of `predict`.
    """
    lengths, packed = length_sample.lengths, chosen.packed
    times = counts(cost, lengths, packed=packed)
    target = chosen.options.get("target_tokens")
    full = target or setup.max_tokens
    if packed:
        full = full_group(times, lengths, setup.max_tokens, chosen.accumulate)
    dear = times > full
    share = times[dear].sum() / times.sum()
    if share < _SHARE:
        return

    def told(build: Build, setup: Setup) -> str:
        found = predict_once(build, builders, length_sample, setup=setup, cost=cost, **world)
        return _FIGURES.format(**found)

    own, larger = builders[chosen.policy], 2 * setup.longest
    longer = replace(setup, update_tokens=_UPDATES * setup.update_tokens)
    helps = []
    if target is None and larger > setup.max_tokens:
        found = told(own, replace(setup, max_tokens=larger))
        helps.append(f"max_tokens={larger:,}, if memory allows ({found})")
    helps.append(f"update_tokens={longer.update_tokens:,} ({told(own, longer)})")

    def waits_less(build: Build, said: str) -> str:
        found = told(lambda options: build(replace(options, sync="update")), longer)
        return f"{said} and sync='update', under DDP or ZeRO-1 ({found})"

    if chosen.policy == "even":
        helps.append(waits_less(own, "those updates"))
    if pack := builders.get("even-packed"):
        if not packed:
            helps.append(f"packing ({told(pack, setup)})")
        helps.append(waits_less(pack, "packing, those updates"))
    now = _FIGURES.format(**{name: figure.value for name, figure in chosen.figures.items()})
    yield (
        f"{int(dear.sum()):,} of the {len(lengths):,} samples, those longer than "
        f"{int(lengths[~dear].max(initial=0)):,} tokens, take longer than a full group, and "
        f"{share:.0%} of the time; ranks wait for them, or each for its like ({now}). What helps: "
        f"{'; '.join(helps)}; and context parallelism for those longer than memory allows."
    )


_SAME = 0.15
"""Updates whose tokens differ by a smaller share need no other learning rate."""


@dataclass(frozen=True, kw_only=True)
class LearningRateHint:
    """Updates of the recommended policy, against those of fixed batches."""

    baseline: Prediction
    chosen: Prediction

    @property
    def linear(self) -> float:
        """Factor of the linear rule: tokens of an update over those of the baseline."""
        return _tokens(self.chosen) / _tokens(self.baseline)

    @property
    def square_root(self) -> float:
        """Factor of the square-root rule."""
        return math.sqrt(self.linear)

    @property
    def text(self) -> str:
        """The hint in sentences."""
        fixed = self.baseline.options.get("batch_size")
        held = (
            f"Of each rank, an update has {self.baseline.accumulate:,} x batch_size={fixed:,} of "
            f"fixed-batch (--batch-size), or {self.chosen.accumulate:,} x a group of "
            f"{self.chosen.policy}: "
            f"{_samples(self.baseline):,.0f} and {_samples(self.chosen):,.0f} samples, "
            f"{_tokens(self.baseline):,.0f} and {_tokens(self.chosen):,.0f} tokens on all ranks."
        )
        if abs(self.linear - 1) <= _SAME:
            return (
                f"{held} The learning rate, its schedule and the number of updates can stay. What "
                "changes: batch_size and gradient accumulation are no longer yours to set, and the "
                "optimizer steps where step.ends_update says so."
            )
        return (
            f"{held} From a learning rate that suits the fixed "
            f"batches, the linear rule gives {self.linear:.2f} times that rate, and the "
            f"square-root rule to {self.square_root:.2f} times. Nothing applies either: compare "
            "them in training."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "baseline": _update(self.baseline),
            "recommended": _update(self.chosen),
            "linear_rule": self.linear,
            "square_root_rule": self.square_root,
            "text": self.text,
        }


def _samples(one: Prediction) -> float:
    return one.figures["samples_per_update"].value


def _tokens(one: Prediction) -> float:
    return one.figures["tokens_per_update"].value


def _update(one: Prediction) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "samples_per_update": _samples(one),
        "tokens_per_update": _tokens(one),
    }
