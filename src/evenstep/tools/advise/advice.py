"""The whole advice, from a sketch to a recommendation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.cost import Cost
from evenstep.errors import ConfigurationError
from evenstep.tools.advise.length_sample import LengthSample
from evenstep.tools.advise.predict import BASELINE, LEFT_OUT, Build, Prediction, predict
from evenstep.tools.advise.recommend import Recommendation, Setup, code_for, set_up
from evenstep.tools.advise.summary import Summary, return_on_investment, summarize

__all__ = ["Advice", "advise"]

_PADDED, _PACKED = "even", "even-packed"
_NEAR = 0.01  # of efficiency: less is not worth a word
_OUTLIER = 4  # times the 99th percentile: longer than that, the longest sample decides max_tokens


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What `evenstep advise` tells, before it is laid out."""

    sketch: LengthSample
    summary: Summary
    setup: Setup
    world_size: int
    cost: Cost
    seed: int
    predictions: tuple[Prediction, ...]
    recommendation: Recommendation
    screen: tuple[str, str]
    """See `return_on_investment`."""
    notes: tuple[str, ...]
    """What the user should know of this data, one sentence or two each."""

    def prediction(self, policy: str) -> Prediction:
        """The prediction of the policy called so."""
        return next(one for one in self.predictions if one.policy == policy)

    def as_dict(self) -> dict[str, Any]:
        """One object with all figures; fractions are fractions, not percent."""
        sketch, setup = self.sketch, self.setup
        return {
            "data": sketch.name,
            "samples": sketch.total,
            "sketch": len(sketch.lengths),
            "sketch_is_all": sketch.whole,
            "how_drawn": sketch.how,
            "longest_known": sketch.longest,
            "max_length": sketch.max_length,
            "samples_cut": sketch.cut,
            "lengths": self.summary.as_dict(),
            "screen": {"expected_gain": self.screen[0], "meaning": self.screen[1]},
            "world_size": self.world_size,
            "seed": self.seed,
            "cost": repr(self.cost),
            "recommended": {
                "policy": self.recommendation.policy,
                "max_tokens": setup.max_tokens,
                "target_tokens": setup.target_tokens,
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
    sketch: LengthSample,
    builders: Mapping[str, Build],
    *,
    world_size: int,
    cost: Cost,
    max_tokens: int | None = None,
    buffer_size: int | None = None,
    batch_size: int | None = None,
    packed: bool = False,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Advice:
    """Advice for the data that `sketch` was drawn from.

    Args:
        builders: all policies by name.
        cost: what imbalance, efficiency and speed-up are predicted in.
        max_tokens, buffer_size, batch_size: found by rule where None: see `set_up`.
        packed: the model takes padding-free batches.
        progress: called with epochs run so far and in all.

    Raises:
        ConfigurationError: an argument out of range, samples longer than `max_tokens`, or no policy
            to recommend among `builders`.
    """
    name = _PACKED if packed else _PADDED
    if name not in builders:
        raise ConfigurationError(f"there is no policy {name} to recommend")
    setup = set_up(
        sketch,
        world_size=world_size,
        max_tokens=max_tokens,
        buffer_size=buffer_size,
        batch_size=batch_size,
    )
    summary = summarize(sketch, setup.max_tokens, seed)
    predictions = predict(
        builders,
        sketch,
        world_size=world_size,
        setup=setup,
        cost=cost,
        seed=seed,
        progress=progress,
    )
    chosen = next(one for one in predictions if one.policy == name)
    if chosen.problem is not None:
        raise ConfigurationError(chosen.problem)
    policy = builders[name](setup.options(cost, sketch.lengths))
    recommendation = Recommendation(
        policy=name,
        code=code_for(policy, setup.buffer_size),
        reason=_reason(chosen, packed),
    )
    return Advice(
        sketch=sketch,
        summary=summary,
        setup=setup,
        world_size=world_size,
        cost=cost,
        seed=seed,
        predictions=tuple(predictions),
        recommendation=recommendation,
        screen=return_on_investment(summary),
        notes=tuple(_notes(sketch, summary, setup, predictions, chosen)),
    )


def _reason(chosen: Prediction, packed: bool) -> str:
    speedup = chosen.figures["speedup"]
    if speedup.low <= 1:
        gain = "no certain gain is predicted over fixed batches"
    else:
        gain = f"predicted {speedup.value:.2f} x the useful work per time of fixed batches"
    if packed:
        return f"equal cost on all ranks without padding, as the model takes packed batches; {gain}"
    return f"equal cost on all ranks in every step, with lengths that are known online; {gain}"


def _notes(
    sketch: LengthSample,
    summary: Summary,
    setup: Setup,
    predictions: list[Prediction],
    chosen: Prediction,
) -> list[str]:
    notes = []
    count = len(sketch.lengths)
    if sketch.cut:
        notes.append(
            f"{sketch.cut:,} of the {count:,} samples are longer than {sketch.max_length:,} tokens "
            "and count as that long: the dataset has to truncate them so."
        )
    if sketch.longest is None:
        # With probability 0.95 fewer than 3 / n of all samples exceed the largest of n.
        share = 3 / count
        about = "" if sketch.total is None else f", about {share * sketch.total:,.0f} samples,"
        notes.append(
            f"The longest sample is known of the sketch only: up to {share:.2%} of the data{about} "
            f"may be longer than {summary.longest:,} tokens, and evenstep refuses one that is "
            f"longer than max_tokens={setup.max_tokens:,} by name. --all finds the longest; or "
            "truncate in the dataset."
        )
    if setup.longest > _OUTLIER * summary.p99.value:
        notes.append(
            f"The longest sample, {setup.longest:,} tokens, is "
            f"{setup.longest / summary.p99.value:.0f} times the 99th percentile, "
            f"{summary.p99.value:,.0f}, and alone decides how small max_tokens can be. If such "
            "samples may be truncated, split or left out, do that in the dataset; --max-length "
            "shows what it would change."
        )
    missed = sketch.longest is not None and sketch.longest > 2 * summary.longest
    if missed:
        notes.append(
            f"The sketch's longest sample has {summary.longest:,} tokens, that of the data "
            f"{sketch.longest:,}: CV and predictions leave such rare samples out. --all takes them "
            "in."
        )
    if summary.cv.value <= 0.5 and chosen.figures["samples_per_step"].value:
        per_step = chosen.figures["samples_per_step"].value
        notes.append(
            f"Lengths vary little, so max_tokens acts mostly as a batch size: {per_step:,.0f} "
            "samples a step on all ranks. ODB (appendix H) found quality to fall slightly with "
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
    alone = setup.batch_size == 1
    if better:
        better.sort(key=lambda one: -one.figures["efficiency"].value)
        names = ", ".join(
            f"{one.policy}{'*' if one.needs_lengths else ''} {one.figures['efficiency'].value:.1%}"
            for one in better
        )
        notes.append(
            f"More efficient here by the cost model than {chosen.policy} ({own:.1%}): {names}. "
            "Those with * need all lengths before training; order by length may cost quality"
            + (", and batches of one sample rarely fill an accelerator." if alone else ".")
        )
    if setup.batch_size * setup.longest > setup.max_tokens:
        notes.append(
            f"Fixed batches of {setup.batch_size:,} may take {setup.batch_size * setup.longest:,} "
            f"tokens after padding, over max_tokens={setup.max_tokens:,}."
        )
    elif alone:
        notes.append(
            "Fixed batches hold one sample here, for the longest has to fit. If yours hold more, "
            "compare with them: --batch-size."
        )
    return notes
