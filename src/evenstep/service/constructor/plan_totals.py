"""What each bucket trains on in a step: the totals of a `ServiceStep`, from its plan."""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array, rounded_up
from evenstep.batch.pad import PadCollator, padded_multiple
from evenstep.plan.length_moments import LengthMoments
from evenstep.plan.partition.items import sums
from evenstep.protocol.receipts import StepTotals, counts_by_source
from evenstep.service.job.job import Job
from evenstep.service.job.sample_measure import MEDIA, SUPERVISED
from evenstep.strategy import LoadingPlan


def step_totals(job: Job, plan: LoadingPlan) -> StepTotals:
    """Of shape [buckets]. Samples count as many tokens as the plan says. `PadCollator` pads the
    rows of each micro-batch; any other collate function is taken to pad nothing but the whole to
    its ``pad_to_multiple_of``."""
    rows, micro_batches = plan.assignment.rows, plan.buckets * plan.micro_batches
    counts = np.diff(plan.assignment.offsets)
    micro_batch = np.repeat(np.arange(micro_batches), counts)
    bucket = micro_batch // plan.micro_batches
    tokens, lengths = plan.tokens[rows], plan.samples.lengths
    multiple = padded_multiple(job.collator) or 1
    if isinstance(job.collator, PadCollator):
        longest = np.zeros(micro_batches, np.int64)
        np.maximum.at(longest, micro_batch, tokens)
        padded = rounded_up(longest, multiple) * counts
    else:
        padded = rounded_up(sums(tokens, micro_batch, micro_batches), multiple)

    def counted(name: str) -> Int64Array:
        found = lengths[name][rows] if name in lengths else np.zeros(len(rows), np.int64)
        return np.asarray(sums(found, bucket, plan.buckets))

    patches, images, _ = MEDIA
    source = plan.samples.source[rows].astype(np.int64)
    bounds = plan.assignment.offsets[:: plan.micro_batches]
    mean, deviation, skew = _spread(tokens, bucket, plan.buckets)
    return StepTotals(
        samples=np.bincount(bucket, minlength=plan.buckets),
        tokens=sums(tokens, bucket, plan.buckets),
        padded_tokens=padded.reshape(plan.buckets, -1).sum(axis=1),
        supervised_tokens=counted(SUPERVISED),
        cost=np.asarray(plan.cost_after.sum(axis=1), np.float64),
        length_mean=mean,
        length_deviation=deviation,
        length_skew=skew,
        patches=counted(patches),
        images=counted(images),
        by_source=counts_by_source(source, len(plan.samples.sources), tokens, bounds),
    )


def _spread(tokens: Int64Array, bucket: Int64Array, buckets: int) -> Float64Array:
    """[3, buckets] mean, deviation and skew of `Totals`; 0 for a bucket without tokens."""
    spread = np.zeros((3, buckets))
    tokens, bucket = tokens[tokens > 0], bucket[tokens > 0]
    held = np.unique(bucket)
    if len(held):
        moments = LengthMoments.of(tokens, np.append(np.searchsorted(bucket, held), len(bucket)))
        deviation = np.sqrt(moments.variance)
        spread[:, held] = moments.mean, deviation, np.cbrt(moments.third / moments.tokens)
    return spread
