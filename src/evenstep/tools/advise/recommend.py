"""The settings to start with, from stated rules.

Where model and GPU are known, `max_tokens` is what fits by estimate. Otherwise it is the start of a
search for the fastest budget: ODB (section 4) sweeps upward from two to four times the mean length,
and a budget below the longest sample would refuse samples. Only runs on the accelerator show
whether a budget fits the memory, and which one is fastest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from evenstep.cost import Cost
from evenstep.errors import ConfigurationError
from evenstep.plan.policies.by_name import PolicyOptions
from evenstep.plan.policies.even import Even
from evenstep.plan.policy import Policy
from evenstep.plan.update_size import full_update
from evenstep.plan.value_checks import AUTO, check_at_least
from evenstep.protocol.window_size import check_buffer_size
from evenstep.tools.advise.length_sample import LengthSample, TooLong
from evenstep.tools.advise.model_on_gpu import Way

_STEP = 256  # budgets are multiples of this
_MEANS = 4
_GROUPS = 64  # groups that a window should hold, so that each finds samples of its length
_DOUBLINGS, _MANY = 3, 64


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The numbers that all policies are compared with."""

    world_size: int
    max_tokens: int
    """Token budget of one group on one rank."""
    target_tokens: int | None
    """Tokens that `Even`'s groups should hold, if much fewer; else None."""
    update_tokens: int
    """Real tokens of an update of the model, on all ranks."""
    buffer_size: int | str
    """Samples of a window, or "auto"."""
    batch_size: int
    """Samples per batch for policies that fix them; by default as many as fit `max_tokens` whatever
    their lengths."""
    longest: int
    """Longest sample that is known."""
    sweep: tuple[int, ...]
    """Budgets to try on the accelerator, upward until memory is full or speed no longer rises."""
    reasons: tuple[str, ...]
    """The reason for each number."""
    recomputes: bool = False
    """Whether `max_tokens` fits with gradient checkpointing alone."""

    def options(self, cost: Cost) -> PolicyOptions:
        """The options to build policies from."""
        return PolicyOptions(
            max_tokens=self.max_tokens,
            target_tokens=self.target_tokens,
            batch_size=self.batch_size,
            cost=cost,
        )

    @property
    def to_try(self) -> str:
        """The budgets to try, in a sentence."""
        sweep = ", ".join(f"{tokens:,}" for tokens in self.sweep)
        return (
            f"Only runs on the accelerator show whether max_tokens={self.max_tokens:,} fits its "
            f"memory, and which budget is fastest: try {sweep} as docs/tuning.md says, and take "
            "the smallest that is nearly as fast as the fastest."
        )


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """A policy and the code for a training script."""

    policy: str
    """Its name on the command line."""
    code: str
    reason: str


def set_up(
    length_sample: LengthSample,
    *,
    world_size: int,
    max_tokens: int | None = None,
    buffer_size: int | str = AUTO,
    batch_size: int | None = None,
    accumulate: int = 1,
    update_tokens: int | None = None,
    fits: Sequence[Way] = (),
) -> Setup:
    """The numbers to compare with: those given, and rules for the others.

    Args:
        accumulate: fixed batches of a rank whose gradients the user adds up.
        fits: what memory allows, where that is known.

    Raises:
        ConfigurationError: samples are longer than `max_tokens`, or than what fits.
    """
    check_at_least(1, world_size=world_size, max_tokens=max_tokens, accumulate=accumulate)
    check_at_least(1, batch_size=batch_size, update_tokens=update_tokens)
    check_buffer_size(buffer_size)
    longest = length_sample.longest or int(length_sample.lengths.max())
    mean = float(length_sample.lengths.mean())
    start, why_tokens = _max_tokens(max_tokens, length_sample, longest)
    by_memory = fits and max_tokens is None
    found = _fitting(start, fits) if by_memory else Way(start, False, why_tokens)
    max_tokens = found.tokens
    target_tokens, why_target = _target_tokens(
        max_tokens, mean, _most_held(buffer_size, length_sample.total, world_size)
    )
    usual = Even(start, target_tokens=None if by_memory else target_tokens)
    full = full_update(usual, world_size, length_sample.lengths)
    batches = accumulate * world_size
    theirs = None if batch_size is None else max(1, round(batch_size * mean * batches))
    update_tokens, why_update = _update_tokens(update_tokens, theirs, full)
    batch_size, why_batch = _batch_size(batch_size, max_tokens, longest)
    return Setup(
        world_size=world_size,
        max_tokens=max_tokens,
        target_tokens=target_tokens,
        update_tokens=update_tokens,
        buffer_size=buffer_size,
        batch_size=batch_size,
        longest=longest,
        sweep=_sweep(start, mean, max_tokens if fits else None),
        recomputes=found.recomputes,
        reasons=tuple(filter(None, [found.how, why_target, why_update, why_batch])),
    )


# Each rule gives a number and the reason for it. A number that the user gave is kept.


def _max_tokens(given: int | None, length_sample: LengthSample, longest: int) -> tuple[int, str]:
    lengths = length_sample.lengths
    if given is None:
        mean = float(lengths.mean())
        which = "sample" if length_sample.longest else "sample drawn"
        return _rounded_up(max(longest, _MEANS * mean)), (
            f"max_tokens: {_MEANS} x the mean length of {mean:,.0f}, but no less than the longest "
            f"{which} of {longest:,}, rounded up to a multiple of {_STEP}"
        )
    if longest > given:
        raise ConfigurationError(
            f"the longest sample has {longest:,} tokens, over max_tokens={given:,}, and would be "
            f"refused in training: {TooLong.of(lengths, given) or 'none drawn is as long'}; raise "
            f"--max-tokens, or give --max-length {given} for predictions with too_long='truncate'"
        )
    return given, "max_tokens: as given"


def _fitting(least: int, fits: Sequence[Way]) -> Way:
    """The first that holds so many tokens."""
    for tokens, again, how in fits:
        if tokens >= least:
            return Way(tokens // _STEP * _STEP, again, f"max_tokens: by memory; {how}")
    raise ConfigurationError(
        f"a batch needs {least:,} tokens, and {max(0, max(fits).tokens):,} fit ({max(fits).how}); "
        "give --max-length, more ranks or a larger --gpu"
    )


def _most_held(buffer_size: int | str, total: int | None, world_size: int) -> int | None:
    """Samples that a rank's window can hold at most; None for any number."""
    limits = [None if isinstance(buffer_size, str) else buffer_size]
    limits.append(None if total is None else max(1, total // world_size))
    return min((limit for limit in limits if limit is not None), default=None)


def _target_tokens(max_tokens: int, mean: float, held: int | None) -> tuple[int | None, str]:
    """None and no reason unless it is at most half of `max_tokens`.

    Windows grow to hold enough groups, but not beyond a rank's share of the data, which may be few
    groups if one long sample decides `max_tokens`.
    """
    if held is None:
        return None, ""
    wanted = _rounded_up(mean * max(_MEANS, held / _GROUPS))
    if 2 * wanted > max_tokens:
        return None, ""
    return wanted, (
        f"target_tokens: so that a rank chooses among {_GROUPS} groups; it holds {held:,} samples "
        f"at most, and max_tokens itself would be {max_tokens / mean:,.0f} of mean length"
    )


def _update_tokens(given: int | None, theirs: int | None, full: int) -> tuple[int, str]:
    """
    Args:
        theirs: tokens of an update of the user's fixed batches.
        full: tokens of an update that is a full group of each rank.
    """
    if given is not None:
        return given, "update_tokens: as given"
    if theirs is not None:
        return theirs, (
            f"update_tokens: {theirs:,}, the mean of --batch-size samples, times the ranks and "
            "--accumulate, the batches whose gradients you add up"
        )
    return full, f"update_tokens: {full:,}, what a full group of each rank holds"


def _batch_size(given: int | None, max_tokens: int, longest: int) -> tuple[int, str]:
    if given is not None:
        return given, "batch_size of policies with fixed batches: as given"
    return max(1, max_tokens // longest), (
        f"batch_size of policies with fixed batches: {max_tokens:,} // {longest:,}, the most "
        "samples that fit max_tokens whatever their lengths"
    )


def _sweep(start: int, mean: float, most: int | None) -> tuple[int, ...]:
    """`start` and its doublings, up to groups of `_MANY` samples of mean length, and at least one;
    none over `most`, which is the last."""
    doubled = [start * 2**k for k in range(1, _DOUBLINGS + 1)]
    tried = (start, doubled[0], *(tokens for tokens in doubled[1:] if tokens <= _MANY * mean))
    return tried if most is None else (*(each for each in tried if each < most), most)


def _rounded_up(tokens: float) -> int:
    return int(-(-tokens // _STEP)) * _STEP


def code_for(policy: Policy, buffer_size: int | str, update_tokens: int) -> str:
    """Python code that builds a loader with `policy`. Defaults are left out."""
    given = []
    for f in dataclasses.fields(policy):  # type: ignore[arg-type]
        value = getattr(policy, f.name)
        default = f.default
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        if value != default:
            given.append(f"{f.name}={value!r}")
    # What is no plain value is a cost, whose `repr` is code.
    costs = sorted(set(re.findall(r"\b([A-Z]\w*)\(", ", ".join(given))))
    name, memory = type(policy).__name__, f"evenstep.Memory(buffer_size={buffer_size})"
    lines = [
        "import evenstep",
        *([f"from evenstep.cost import {', '.join(costs)}"] if costs else []),
        "",
        "loader = evenstep.DataLoader(",
        "    dataset,",
        f"    policy=evenstep.{name}({', '.join(given)}),",
        f"    update_tokens={update_tokens},",
        *([] if buffer_size == AUTO else [f"    memory={memory},"]),
        "    shuffle=True,",
        "    num_workers=4,",
        *(["    collate_fn=evenstep.PackCollator(),"] if policy.packed else []),
        ")",
    ]
    return "\n".join(lines)
