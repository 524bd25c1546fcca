"""Samples that take longer than any full group: how much of the time they are, and what helps.

They are groups by themselves, which other ranks meet with their like or wait for: see
`evenstep.plan.policies.even.timed`. Each remedy is tried on one epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

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
    if pack := builders.get("even-packed"):
        if not packed:
            helps.append(f"packing ({told(pack, setup)})")
        found = told(lambda options: pack(replace(options, sync="update")), longer)
        helps.append(f"packing, those updates and sync='update', under DDP or ZeRO-1 ({found})")
    now = _FIGURES.format(**{name: figure.value for name, figure in chosen.figures.items()})
    yield (
        f"{int(dear.sum()):,} of the {len(lengths):,} samples, those longer than "
        f"{int(lengths[~dear].max(initial=0)):,} tokens, take longer than a full group, and "
        f"{share:.0%} of the time; ranks wait for them, or each for its like ({now}). What helps: "
        f"{'; '.join(helps)}; and context parallelism for those longer than memory allows."
    )
