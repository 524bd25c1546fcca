"""What a loader says about its pass: one line each, on the logger "evenstep"."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.composition import Composition
from evenstep.batch.step_info import StepInfo
from evenstep.loader.batcher.batcher_messages import BadSample, RoundProgress
from evenstep.loader.row_order import name_of
from evenstep.plan.length_moments import LengthMoments
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policy import Policy
from evenstep.plan.update_size import GROUPS
from evenstep.protocol.slow_ranks import SlowRank
from evenstep.protocol.window_buffer import RoundStart

logger = logging.getLogger("evenstep")

LEAST_COMPOSITION = 0.9
"""Below it, updates are so alike in length that training on them is worth a warning."""
_UPDATES = 32
"""Updates that show composition well enough."""
_FEW, _FEW_UPDATES = 4, 8
"""Groups of an update below which so few updates do; the first have only small windows."""
_NAMED = 8
"""Ranks that a line names."""
_LEAST_CV = 0.1
"""Where lengths vary less, updates of one length teach no less."""


class Notices:
    """Of one loader."""

    def __init__(self, policy: Policy, too_long: str) -> None:
        self._policy, self._choice = policy, too_long
        self._told_of_too_long = False
        self.skipped: list[BadSample] = []
        self._told_of_rows = False
        self._slow: dict[int, SlowRank] = {}
        self._supervised: int | None = None
        """Supervised tokens of the update so far; None where a pass began in its middle."""
        self._told_of_supervised = False
        mixed = policy.packed or policy.micro_batches > 1 or isinstance(policy, FixedBatch)
        self._composition = None if mixed else Composition()

    def begin(self, lengths: Int64Array) -> None:
        """
        Args:
            lengths: `EpochProgress.lengths_before` of the pass that begins.
        """
        self._then, self._now = lengths, lengths.copy()

    def changed_lengths(self, window: RoundStart) -> None:
        """Says, once all of them have come, how many samples of the windows before a resume have
        another length than they had."""
        again = np.flatnonzero(window.numbers < len(self._then))
        self._now[window.numbers[again]] = window.columns[0, again]
        if window.taken < len(self._then):
            return
        changed, count = int(np.count_nonzero(self._now != self._then)), len(self._then)
        self.begin(np.empty(0, np.int64))
        if changed:
            logger.warning(
                "%d of the %d samples that this rank held when the state was saved have another "
                "length now; new batches are formed of what remains, each sample once",
                changed,
                count,
            )

    def bad(self, samples: Iterable[BadSample]) -> None:
        for sample in samples:
            logger.warning("skipped a sample in epoch %d: %s", sample.epoch, sample.reason)
            self.skipped.append(sample)

    def too_long(self, count: int) -> None:
        """Warns, once, that samples are too long.

        Args:
            count: of all ranks so far.
        """
        if not count or self._told_of_too_long:
            return
        self._told_of_too_long = True
        logger.warning(
            "samples have more than max_tokens=%s tokens, %d so far on all ranks: "
            "this is what too_long=%r is for. No other is named: StepInfo.too_long counts them",
            self._policy.max_length,
            count,
            self._choice,
        )

    def same_rows(self, ranks: Sequence[int], sampler: Any, dataset: Any) -> None:
        """Warns, once, of ranks that train on the same rows.

        Args:
            sampler: None where an iterable dataset gives the order.
        """
        if not ranks or self._told_of_rows:
            return
        self._told_of_rows = True
        if sampler is None:
            what = f"the iterable dataset {type(dataset).__name__} yields the same to each. Have it"
            remedy = (
                "yield the samples of its rank alone, such as itertools.islice(samples, rank, "
                "None, ranks), or datasets.distributed.split_dataset_by_node"
            )
        else:
            what = f"the sampler {name_of(sampler)} yields the same to each. Pass"
            remedy = "shard_sampler=True, by which ranks share its rows, or each rank's own indices"
        more = f" and {len(ranks) - _NAMED} others" if len(ranks) > _NAMED else ""
        logger.warning(
            "ranks %s%s train on the same rows: %s %s; or, if these ranks are meant to have the "
            "same batches, pass group=, with one of them",
            ", ".join(map(str, ranks[:_NAMED])),
            more,
            what,
            remedy,
        )

    def slow(self, ranks: Sequence[SlowRank], step: StepInfo) -> None:
        """Warns of each rank that becomes slow, on the first rank, and says when it is no more."""
        now = {each.rank: each for each in ranks}
        for each in ranks[:_NAMED]:
            if each.rank not in self._slow:
                logger.warning("%s; see docs/diagnose.md", each)
        for rank in self._slow.keys() - now:
            logger.warning(
                "rank %d needs no more time than its work explains again, at step %s of epoch %d",
                rank,
                f"{step.step:,}",
                step.epoch,
            )
        self._slow = now

    def supervision(self, step: StepInfo) -> None:
        """Warns, once and on the first rank, of an update that trains on nothing."""
        if not step.micro_step:
            self._supervised = 0
        if self._supervised is not None:
            self._supervised += step.global_supervised_tokens
        nothing = step.ends_update and self._supervised == 0
        if nothing and not step.rank and not self._told_of_supervised:
            self._told_of_supervised = True
            logger.warning(
                "update %d of epoch %d has no supervised token on any rank, so it trains on "
                "nothing: its samples (%s on this rank's last step) have no label but -100. If "
                "truncation cuts off what follows the prompts, allow longer samples, or leave "
                "those without labels out of the dataset. No further update like it is named: "
                "StepInfo.global_supervised_tokens is 0 in all of its steps",
                step.update,
                step.epoch,
                list(step.indices or ())[:8],
            )

    def round(self, first: StepInfo, progress: RoundProgress) -> None:
        """Warns, once and on the first rank, of updates that hold samples of like length, once
        enough of them are planned.

        Args:
            first: step of the round.
        """
        if self._composition is None or first.rank:
            return
        for number, moments in enumerate(progress.lengths, first.step + 1):
            ends = (number - first.counted[0]) % first.accumulate == 0
            self._composition.add_moments(moments, ends_update=ends)
        groups = first.world_size * first.accumulate
        window = progress.start.columns[0]
        enough = _FEW_UPDATES if groups < _FEW else _UPDATES
        if not len(window) or self._composition.updates < enough:
            return
        value = self._composition.within(LengthMoments.of(window, [0, len(window)]).together())
        vary = window.std() >= _LEAST_CV * window.mean()
        self._composition = None
        if value < LEAST_COMPOSITION and vary:
            logger.warning(
                "updates hold samples of like length (composition %.2f, where random batches have "
                "1) and may learn worse: on text, one group of one length had a held-out loss 0.1 "
                "to 0.5 higher after the same samples. %s; or use packed=True, if the model takes "
                "packed rows. See docs/learning.md",
                value,
                "Pass update_tokens=, which makes several smaller groups of an update"
                if groups < GROUPS and first.accumulate == 1
                else f"Let an update have more groups than its {groups}: raise update_tokens=",
            )
