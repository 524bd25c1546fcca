"""The whole advice, from a sample of lengths to a recommendation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from evenstep.cost import Cost
from evenstep.errors import ConfigurationError
from evenstep.plan.policies.even.packed_round import full_group
from evenstep.plan.policies.even.timed import counts
from evenstep.tools.advise.length_sample import LengthSample, Summary, TooLong
from evenstep.tools.advise.model_on_gpu import NO_FACTS, ModelFacts
from evenstep.tools.advise.predict import BASELINE, LEFT_OUT, Build, Prediction, predict
from evenstep.tools.advise.recommend import Recommendation, Setup, code_for

_PADDED, _PACKED = "even", "even-packed"
_RANDOM = 0.9  # composition below is worth a warning
_OUTLIER = 4  # times the 99th percentile: beyond that, the longest sample decides max_tokens
_SHARE = 0.01  # of all time, below which dear samples are not worth a note
_SAME = 0.15  # updates whose tokens differ by a smaller share need no other learning rate


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The content of `evenstep advise`, before it is laid out."""

    length_sample: LengthSample
    summary: Summary
    setup: Setup
    cost: Cost
    seed: int
    predictions: tuple[Prediction, ...]
    recommendation: Recommendation
    notes: tuple[str, ...]
    """Remarks on this data, one or two sentences each."""

    def prediction(self, policy: str) -> Prediction:
        """The prediction for a policy, by its name."""
        return next(one for one in self.predictions if one.policy == policy)

    def as_dict(self) -> dict[str, Any]:
        """One object with all figures; fractions are fractions, not percent."""
        length_sample, setup = self.length_sample, self.setup
        return {
            "data": length_sample.name,
            "samples": length_sample.total,
            "sketch": len(length_sample.lengths),
            "sketch_is_all": length_sample.whole,
            "how_drawn": length_sample.how,
            "longest_known": length_sample.longest,
            "max_length": length_sample.max_length,
            "samples_cut": 0 if length_sample.cut is None else length_sample.cut.samples,
            "too_long": None if length_sample.cut is None else asdict(length_sample.cut),
            "lengths": asdict(self.summary),
            "world_size": setup.world_size,
            "seed": self.seed,
            "cost": repr(self.cost),
            "recommended": {
                "policy": self.recommendation.policy,
                "max_tokens": setup.max_tokens,
                "target_tokens": setup.target_tokens,
                "update_tokens": setup.update_tokens,
                "accumulate": self.prediction(self.recommendation.policy).accumulate,
                "buffer_size": setup.buffer_size,
                "max_tokens_to_try": list(setup.sweep),
                "reason": self.recommendation.reason,
                "code": self.recommendation.code,
            },
            "batch_size": setup.batch_size,
            "rules": list(setup.reasons),
            "baseline": BASELINE,
            "predictions": {one.policy: one.as_dict() for one in self.predictions},
            "predictions_leave_out": list(LEFT_OUT),
            "notes": list(self.notes),
        }


def advise(
    length_sample: LengthSample,
    builders: Mapping[str, Build],
    *,
    setup: Setup,
    cost: Cost,
    packed: bool = False,
    facts: ModelFacts = NO_FACTS,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Advice for the data that `length_sample` was drawn from.

    Args:
        builders: all policies by name.
        setup: see `set_up`.
        cost: the cost model of the predictions.
        packed: the model takes padding-free batches.
        facts: of the model, where `cost` is its own.
        progress: called with epochs run so far and in all.

    Raises:
        ConfigurationError: an argument out of range, samples longer than `max_tokens`, or no policy
            to recommend among `builders`.
    """
    name = _PACKED if packed else _PADDED
    if name not in builders:
        raise ConfigurationError(
            f"the policy {name} is not among the builders, so it cannot be recommended"
        )
    options: dict[str, Any] = {"setup": setup, "cost": cost, "rate": facts.rate, "seed": seed}
    predictions = predict(builders, length_sample, progress=progress, **options)
    chosen = next(one for one in predictions if one.policy == name)
    if chosen.problem is not None:
        raise ConfigurationError(chosen.problem)
    baseline = next(one for one in predictions if one.policy == BASELINE)
    policy = builders[name](setup.options(cost))
    summary = Summary.of(length_sample.lengths)
    return Advice(
        length_sample=length_sample,
        summary=summary,
        setup=setup,
        cost=cost,
        seed=seed,
        predictions=tuple(predictions),
        recommendation=Recommendation(
            policy=name,
            code=code_for(policy, setup.buffer_size, setup.update_tokens),
            reason=_reason(chosen, packed),
        ),
        notes=(
            *_length_notes(length_sample, summary, setup),
            *_dear_note(length_sample, setup, cost, chosen),
            *_policy_notes(chosen, baseline),
            *_batch_notes(setup),
            *facts.notes,
        ),
    )


def _reason(chosen: Prediction, packed: bool) -> str:
    why = "in every step, from lengths measured online"
    if packed:
        why = "without padding, since the model takes packed batches"
    return (
        f"equal cost on all ranks {why}; predicted speed-up of {chosen.figures['speedup']:.2f} "
        f"over fixed batches; composition {chosen.figures['composition']:.2f}, where 1 is random "
        "batches"
    )


def _batch_notes(setup: Setup) -> Iterator[str]:
    """Fixed batches that hold one sample."""
    if setup.batch_size == 1:
        yield (
            "Fixed batches hold one sample here, since the longest has to fit. If yours hold more, "
            "compare with them: --batch-size."
        )


def _length_notes(length_sample: LengthSample, summary: Summary, setup: Setup) -> Iterator[str]:
    """Samples that are truncated, unknown or extremely long."""
    count = len(length_sample.lengths)
    if length_sample.cut:
        yield f"{length_sample.cut}. The predictions are for 'truncate'."
    if length_sample.longest is None:
        # With probability 0.95 fewer than 3 / n of all samples exceed the largest of n.
        share, total = 3 / count, length_sample.total
        about = "" if total is None else f", about {share * total:,.0f} samples,"
        yield (
            f"Only the longest of the samples drawn is known: up to {share:.2%} of the data{about} "
            f"may be longer than {summary.longest:,} tokens, and evenstep refuses a sample that is "
            f"longer than max_tokens={setup.max_tokens:,}, by name, unless too_long= says what "
            "becomes of it. --all finds the longest."
        )
    if setup.longest > _OUTLIER * summary.p99:
        costs = TooLong.of(length_sample.lengths, math.ceil(summary.p99))
        yield (
            f"The longest sample, {setup.longest:,} tokens, is "
            f"{setup.longest / summary.p99:.0f} times the 99th percentile, "
            f"{summary.p99:,.0f}, and alone decides how small max_tokens can be. "
            f"{costs or 'None drawn is as long'}. "
            "--max-length shows what that would change."
        )


def _dear_note(
    length_sample: LengthSample, setup: Setup, cost: Cost, chosen: Prediction
) -> Iterator[str]:
    """Samples that take longer than any full group, which are groups by themselves: see
    `evenstep.plan.policies.even.timed`."""
    lengths = length_sample.lengths
    times = counts(cost, lengths, packed=chosen.packed)
    full = setup.target_tokens or setup.max_tokens
    if chosen.packed:
        full = full_group(times, lengths, setup.max_tokens, chosen.accumulate)
    dear = times > full
    share = float(times[dear].sum() / times.sum())
    if share >= _SHARE:
        yield (
            f"{int(dear.sum()):,} of the {len(lengths):,} samples, those longer than "
            f"{int(lengths[~dear].max(initial=0)):,} tokens, take longer than a full group, and "
            f"{share:.0%} of the time; ranks wait for them, or each for its like. What helps: a "
            "larger max_tokens, if memory allows; larger updates, and sync='update' under DDP or "
            "ZeRO-1; packing; and context parallelism for those longer than memory allows."
        )


def _policy_notes(chosen: Prediction, baseline: Prediction) -> Iterator[str]:
    """Doubts about `chosen`, and what becomes of the learning rate."""
    composition = chosen.figures["composition"]
    if composition < _RANDOM:
        yield (
            f"The steps of {chosen.policy} mix lengths less than random batches do (composition "
            f"{composition:.2f}), which may cost quality: compare the held-out loss, and note that "
            "adding up the gradients of several steps mixes more."
        )
    held = chosen.figures["tokens_per_update"]
    ratio = held / baseline.figures["tokens_per_update"]
    yield (
        f"An update has {held:,.0f} tokens on all ranks, {ratio:.2f} times those of fixed-batch "
        "(--batch-size). "
        + (
            "The learning rate, its schedule and the number of updates can stay."
            if abs(ratio - 1) <= _SAME
            else f"Tune the rate anew (Adam: from x {math.sqrt(ratio):.2f}) or set --update-tokens."
        )
    )
