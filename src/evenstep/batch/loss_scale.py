"""How a rank's loss is weighted, so that the averaged gradient is that of one big batch.

Training averages the gradients of W ranks, and each rank's loss is a mean over its own tokens. A
rank with few tokens would then weigh them more than a rank with many. Multiplying the loss of rank
r by W * t_r / T undoes it (ODB, eq. 2): the average over ranks becomes the sum over all tokens of
all ranks, divided by T.

This holds if the loss is the mean over exactly the rank's supervised tokens t_r, as cross entropy
with ``reduction="mean"`` gives it. It does not hold for a sum, for a mean over samples, or where a
trainer already divides by the number of tokens of all ranks: then use "none".

Where a rank's step is several micro-batches, whose losses are added up before the optimizer steps,
each is one such mean: micro-batch m is multiplied by W * t_rm / T.

Where the gradients of several steps are added up before the optimizer steps (``accumulate`` of the
loader), T counts the tokens of all those steps: each rank's losses then add up to the sum over all
tokens of the update, divided by T.

The same holds where a row is cut over context-parallel ranks: each of the W ranks, data-parallel
times context-parallel, has t_r supervised tokens in its shard (`shard_loss_scale`).

A rank with t_r = 0 has scale 0. PyTorch's mean over no tokens is NaN, but its gradient is zero, so
only the printed loss is affected. That is so for `torch.nn.functional.cross_entropy`; a mean that
is written out as a sum over a count divides 0 by 0 in its gradient, too. The sum over the rank's
tokens with scale W / T has the same gradient without a division, and is never NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_one_of

if TYPE_CHECKING:  # the protocol is more than a process that makes batches needs
    from evenstep.protocol.receipts import StepTotals

LOSS_SCALING = ("token", "sample", "none")
"""The modes of `loss_scale`."""

_REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class LossTotals:
    """What loss scales are fractions of: sums over all ranks and some steps of an update."""

    samples: int = 0
    supervised_tokens: int = 0

    @classmethod
    def of(cls, totals: StepTotals) -> LossTotals:
        """Of one step."""
        return cls(int(totals.samples.sum()), int(totals.supervised_tokens.sum()))

    def __add__(self, other: LossTotals) -> LossTotals:
        return LossTotals(
            self.samples + other.samples,
            self.supervised_tokens + other.supervised_tokens,
        )

    def counted(self, mode: str) -> int:
        """The sum that `mode` divides by; not for "none"."""
        return self.supervised_tokens if mode == "token" else self.samples


def loss_scale(
    totals: StepTotals,
    rank: int,
    mode: str = "token",
    *,
    total: int | None = None,
) -> float:
    """The factor for this rank's loss.

    Args:
        totals: what each rank trains on in this step.
        rank: this rank.
        mode: "token" is exact: W * t_r / T. "sample" is W * n_r / N with n counting samples, right
            for a loss that is a mean over samples. "none" is 1, however many steps an update has.
        total: T or N of all steps of the update; None where the step is an update by itself.

    Returns:
        At least 0. 0 on a rank that counts nothing, so a filler is 0 in every mode, and 0 on
        every rank where nothing is counted anywhere.

    Raises:
        ConfigurationError: an unknown mode.
    """
    if mode == "none":
        return 1.0 if totals.samples[rank] else 0.0
    if mode not in LOSS_SCALING:
        raise ConfigurationError(f"loss scaling {mode!r} must be one of {LOSS_SCALING}")
    counts = totals.supervised_tokens if mode == "token" else totals.samples
    if total is None:
        total = int(counts.sum())
    return float(len(counts) * counts[rank] / total) if total else 0.0


def micro_batch_scales(
    scale: float, mode: str, samples: Sequence[int], supervised: Sequence[int]
) -> tuple[float, ...]:
    """The factors for the losses of a rank's micro-batches.

    Args:
        scale: `loss_scale` of the rank, which is their sum, except for "none".
        mode: as for `loss_scale`.
        samples, supervised: of each micro-batch.
    """
    if mode == "none":
        return (scale,) * len(samples)
    counts = supervised if mode == "token" else samples
    total = sum(counts)
    return tuple(scale * count / total if total else 0.0 for count in counts)


def shard_loss_scale(supervised: int, total: int, ranks: int, *, reduction: str = "mean") -> float:
    """The factor for the loss of a shard, where gradients are averaged over all ranks.

    Args:
        supervised: tokens of this rank's shard whose ``shift_labels`` are not -100.
        total: the same of all shards of all rows that the ranks train on in this step.
        ranks: data-parallel times context-parallel ranks, over which gradients are averaged.
        reduction: "mean" over the shard's supervised tokens: ranks * supervised / total. "sum" over
            them: ranks / total, which a rank without supervised tokens needs where its mean would
            be NaN.

    Returns:
        At least 0; 0 where no token is supervised anywhere.

    Raises:
        ConfigurationError: an unknown reduction, or numbers that contradict each other.
    """
    check_one_of(_REDUCTIONS, reduction=reduction)
    if ranks < 1 or not 0 <= supervised <= total:
        raise ConfigurationError(
            f"{supervised:,} supervised tokens of this rank, {total:,} of all {ranks:,} ranks; "
            "pass the sum over all ranks, which counts this one"
        )
    count = supervised if reduction == "mean" else 1
    return ranks * count / total if total else 0.0
