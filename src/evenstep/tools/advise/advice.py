"""The whole advice, from a sample of lengths to a recommendation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.cost import Cost
from evenstep.errors import ConfigurationError
from evenstep.tools.advise.length_sample import (
    LengthSample,
    Summary,
    return_on_investment,
    summarize,
)
from evenstep.tools.advise.notes import LearningRateHint, dear_note
from evenstep.tools.advise.predict import BASELINE, LEFT_OUT, Build, Prediction, predict
from evenstep.tools.advise.recommend import Recommendation, Setup, code_for

_PADDED, _PACKED = "even", "even-packed"
_NEAR = 0.01  # smaller differences of efficiency are not worth a note
_RANDOM = 0.9  # composition below is worth a warning
_OUTLIER = 4  # times the 99th percentile: beyond that, the longest sample decides max_tokens


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The content of `evenstep advise`, before it is laid out."""

    length_sample: LengthSample
    summary: Summary
    setup: Setup
    world_size: int
    cost: Cost
    seed: int
    predictions: tuple[Prediction, ...]
    recommendation: Recommendation
    screen: tuple[str, str]
    """The word and the sentence of `return_on_investment`."""
    notes: tuple[str, ...]
    """Remarks on this data, one or two sentences each."""

    def prediction(self, policy: str) -> Prediction:
        """The prediction for a policy, by its name."""
        return next(one for one in self.predictions if one.policy == policy)

    @property
    def learning_rate(self) -> LearningRateHint:
        """Updates of the recommended policy, against those of fixed batches."""
        return LearningRateHint(
            baseline=self.prediction(BASELINE), chosen=self.prediction(self.recommendation.policy)
        )

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
            "samples_cut": length_sample.cut,
            "lengths": self.summary.as_dict(),
            "screen": {"expected_gain": self.screen[0], "meaning": self.screen[1]},
            "world_size": self.world_size,
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
            "learning_rate": self.learning_rate.as_dict(),
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
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Advice for the data that `length_sample` was drawn from.

    Args:
        builders: all policies by name.
        setup: see `set_up`.
        cost: the cost model of the predictions.
        packed: the model takes padding-free batches.
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
    summary = summarize(length_sample, setup.max_tokens, seed)
    world: dict[str, Any] = {"world_size": setup.world_size, "cost": cost, "seed": seed}
    predictions = predict(builders, length_sample, setup=setup, progress=progress, **world)
    chosen = next(one for one in predictions if one.policy == name)
    if chosen.problem is not None:
        raise ConfigurationError(chosen.problem)
    policy = builders[name](setup.options(cost))
    recommendation = Recommendation(
        policy=name,
        code=code_for(policy, setup.buffer_size, setup.update_tokens),
        reason=_reason(chosen, packed),
    )
    return Advice(
        **world,
        length_sample=length_sample,
        summary=summary,
        setup=setup,
        predictions=tuple(predictions),
        recommendation=recommendation,
        screen=return_on_investment(summary),
        notes=(
            *_notes(length_sample, summary, setup, predictions, chosen),
            *dear_note(builders, length_sample, setup=setup, chosen=chosen, **world),
        ),
    )


def _reason(chosen: Prediction, packed: bool) -> str:
    speedup = chosen.figures["speedup"]
    if speedup.low <= 1:
        gain = "no certain gain is predicted over fixed batches"
    else:
        gain = f"predicted speed-up of {speedup.value:.2f} over fixed batches"
    gain += f"; composition {chosen.figures['composition'].value:.2f}, where 1 is random batches"
    why = "in every step, from lengths measured online"
    if packed:
        why = "without padding, since the model takes packed batches"
    return f"equal cost on all ranks {why}; {gain}"


def _notes(
    length_sample: LengthSample,
    summary: Summary,
    setup: Setup,
    predictions: list[Prediction],
    chosen: Prediction,
) -> Iterator[str]:
    yield from _length_notes(length_sample, summary, setup)
    yield from _policy_notes(summary, predictions, chosen, alone=setup.batch_size == 1)
    if setup.batch_size * setup.longest > setup.max_tokens:
        yield (
            f"Fixed batches of {setup.batch_size:,} may take {setup.batch_size * setup.longest:,} "
            f"tokens after padding, over max_tokens={setup.max_tokens:,}."
        )
    elif setup.batch_size == 1:
        yield (
            "Fixed batches hold one sample here, since the longest has to fit. If yours hold more, "
            "compare with them: --batch-size."
        )


def _length_notes(length_sample: LengthSample, summary: Summary, setup: Setup) -> Iterator[str]:
    """Samples that are truncated, unknown or extremely long."""
    count = len(length_sample.lengths)
    if length_sample.cut:
        yield (
            f"{length_sample.cut:,} of the {count:,} samples are longer than "
            f"{length_sample.max_length:,} tokens and count as that long: the dataset has to "
            "truncate them so."
        )
    if length_sample.longest is None:
        # With probability 0.95 fewer than 3 / n of all samples exceed the largest of n.
        share, total = 3 / count, length_sample.total
        about = "" if total is None else f", about {share * total:,.0f} samples,"
        yield (
            f"Only the longest of the samples drawn is known: up to {share:.2%} of the data{about} "
            f"may be longer than {summary.longest:,} tokens, and evenstep refuses a sample that is "
            f"longer than max_tokens={setup.max_tokens:,}, by name. --all finds the longest; or "
            "truncate in the dataset."
        )
    if setup.longest > _OUTLIER * summary.p99.value:
        yield (
            f"The longest sample, {setup.longest:,} tokens, is "
            f"{setup.longest / summary.p99.value:.0f} times the 99th percentile, "
            f"{summary.p99.value:,.0f}, and alone decides how small max_tokens can be. If such "
            "samples may be truncated, split or left out, do that in the dataset; --max-length "
            "shows what it would change."
        )
    if length_sample.longest is not None and length_sample.longest > 2 * summary.longest:
        yield (
            f"The longest sample drawn has {summary.longest:,} tokens, the longest of the data "
            f"{length_sample.longest:,}: CV and predictions leave out such rare samples. --all "
            "includes them."
        )


def _policy_notes(
    summary: Summary, predictions: list[Prediction], chosen: Prediction, *, alone: bool
) -> Iterator[str]:
    """Doubts about `chosen`, and reasons for another; `alone`: fixed batches hold one sample."""
    composition = chosen.figures["composition"].value
    if composition < _RANDOM:
        yield (
            f"The steps of {chosen.policy} mix lengths less than random batches do (composition "
            f"{composition:.2f}), which may cost quality: compare the held-out loss, and note that "
            "adding up the gradients of several steps mixes more."
        )
    samples = chosen.figures["samples_per_update"].value
    if summary.cv.value <= 0.5 and samples:
        yield (
            f"Lengths vary little, so max_tokens acts mostly as a batch size: {samples:,.0f} "
            "samples an update on all ranks. ODB (appendix H) found quality to fall slightly with "
            "large budgets on such data; stay near the batch size that is known to train well."
        )
    own = chosen.figures["efficiency"].value
    better = [
        one
        for one in predictions
        if one.figures
        and one.packed == chosen.packed
        and one.figures["efficiency"].value > own + _NEAR
    ]
    if better:
        better.sort(key=lambda one: -one.figures["efficiency"].value)
        names = ", ".join(
            f"{one.policy}{'*' if one.needs_lengths else ''} {one.figures['efficiency'].value:.1%} "
            f"(composition {one.figures['composition'].value:.2f})"
            for one in better
        )
        yield (
            f"More efficient here by the cost model than {chosen.policy} ({own:.1%}): {names}. "
            "Those with * need all lengths before training; a low composition may cost quality"
            + (", and batches of one sample rarely fill an accelerator." if alone else ".")
        )
