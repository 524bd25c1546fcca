"""`Mixer`: which samples of which sources are drawn in each step.

    weights of the step  ->  shares of draws  ->  pattern of the step  ->  next samples of sources
    (schedules)              (as they are, or     (pattern)                (source_queues)
                             token_shares)

Nothing here knows of ranks, loaders or clocks. All that was drawn before is in the state, so a
mixture that loads it draws what this one would.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.mixture.mixture_options import REPEAT, LengthCurriculum, Options
from evenstep.mixture.pattern import runs_of, shuffled
from evenstep.mixture.sample_table import Metadata, SampleTable
from evenstep.mixture.schedules import (
    ByHand,
    Past,
    Schedule,
    Weights,
    as_schedule,
    in_order,
)
from evenstep.mixture.source_queues import SourceQueues, by_source
from evenstep.mixture.state import MixtureState
from evenstep.mixture.step_draws import DrawRecord, StepDrawer, StepDraws, check_reachable
from evenstep.mixture.token_shares import deficit_after


class Mixer:
    """Draws steps, one after the other. See the module docstring."""

    def __init__(
        self,
        sources: Sequence[str],
        schedule: Schedule | Weights | Any,
        *,
        samples_per_step: int | None = None,
        tokens_per_step: int | None = None,
        by: str = "samples",
        stop: str = REPEAT,
        curriculum: LengthCurriculum | None = None,
        modalities: Sequence[str] | None = None,
        sizes: Mapping[str, int | None] | None = None,
        seed: int = 0,
    ) -> None:
        """
        Args:
            sources: names, in the order in which sample tables and providers number them.
            schedule: of weights; a mapping is constant, a function is called with each step.
            samples_per_step: samples that a step draws.
            tokens_per_step: instead: as many samples as hold no more tokens.
            by: "samples" or "tokens", in which weights are shares.
            stop: "repeat", "first_exhausted", "all_exhausted" or "all_repeated"; see
                `evenstep.mixture.mixture_options`.
            curriculum: longest sample of each step.
            modalities: lengths that add up to a sample's tokens; None is all of them.
            sizes: by source, samples of a pass; None or left out if unknown.
            seed: 64 bits.

        Raises:
            ConfigurationError: an argument is out of range; weights are negative, not finite, all
                0, or of a source that does not exist.
        """
        self.options = Options(
            sources=tuple(sources),
            schedule=as_schedule(schedule),
            samples_per_step=samples_per_step,
            tokens_per_step=tokens_per_step,
            by=by,
            stop=stop,
            curriculum=curriculum,
            modalities=None if modalities is None else tuple(modalities),
            sizes=sizes or {},
            seed=seed,
        )
        """The arguments, checked."""
        self.by_hand = ByHand()
        """Counts for the steps that are drawn from now on, over every schedule."""
        self._state = MixtureState.fresh(self.sources)
        self._last: SampleTable | None = None
        self._drawn_by: Any = None
        self.record: DrawRecord | None = None
        """Record of the step drawn last; None before the first."""
        self.peaks: Mapping[str, float] | None = None
        """By source, the largest weight that the schedule of the step drawn last ever has; None if
        that is not known, as for weights that follow reports."""

    def with_samples(self, samples: int) -> Mixer:
        """One that draws so many samples in a step, from where this one is."""
        other = copy.copy(self)
        other.options = replace(self.options, samples_per_step=samples)
        return other

    @property
    def sources(self) -> tuple[str, ...]:
        """Their names."""
        return self.options.sources

    @property
    def seed(self) -> int:
        return self.options.seed

    @property
    def step(self) -> int:
        """The step that is drawn next."""
        return self._state.step

    @property
    def ended(self) -> bool:
        """Whether the mixture has ended by its stop rule and draws nothing more."""
        return self._state.ended

    def weights_at(self, step: int, by_hand: ByHand | None = None) -> Weights:
        """Weights with which the last step was drawn; for another step, those of the schedule.

        Args:
            by_hand: None is `Mixer.by_hand`.

        Raises:
            ConfigurationError: the weights are refused; the error names the step.
        """
        if self.record is not None and self.record.step == step:
            return self.record.weights
        by_hand = self.by_hand if by_hand is None else by_hand
        return self._weights(by_hand.over(self.options.schedule), step)

    def report(self, **signals: Any) -> None:
        """Takes what trainers measured, for a `FeedbackSchedule`: ``loss_by_source={"web": 2.1}``.
        Signals take effect from the next draw on.

        Raises:
            ConfigurationError: a signal cannot be written as JSON.
        """
        plain = {name: _plain(name, value) for name, value in signals.items()}
        self._state = self._state.with_signals({**self._state.signals, **plain})

    def draw(self, step: int, provider: Metadata) -> SampleTable:
        """The samples of a step, in the order drawn. Idempotent for the step drawn last.

        Args:
            step: `Mixer.step`, or the one before.
            provider: gives the samples of each source from a position on.

        Returns:
            Fewer samples than a step holds only if the mixture ends, or all others are too long
            for the curriculum. No samples after the end.

        Raises:
            ConfigurationError: the step's weights are refused, or it is not the next step.
            SampleError: a sample exceeds a step, or a source that repeats has ended.
        """
        return self.draw_with(step, provider)

    def draw_with(
        self, step: int, provider: Metadata, schedule: Schedule | Weights | Any = None
    ) -> SampleTable:
        """As `draw`, by another schedule's weights for this step; None is that of the mixture.

        Raises:
            ConfigurationError, SampleError: as `draw` does.
        """
        if self.record is not None and self.record.step == step:
            assert self._last is not None
            if schedule is not None and schedule != self._drawn_by:
                raise ConfigurationError(
                    f"the mixture has drawn step {step} by other weights; a step is drawn once: "
                    "mix one graph, and derive the others from it"
                )
            return self._last
        if step != self.step:
            raise ConfigurationError(
                f"step {step} cannot be drawn now: step {self.step} is next, since each step "
                "continues the one before; load the state of that step"
            )
        self._drawn_by = schedule
        schedule = self.options.schedule if schedule is None else as_schedule(schedule)
        schedule = self.by_hand.over(schedule)
        self.peaks = schedule.peaks()
        return self._draw(self._weights(schedule, step), provider)

    # State

    @property
    def state(self) -> MixtureState:
        """Where each source is, as an object that never changes: it may be kept, and written out
        later by `state_dict`."""
        return self._state

    def state_dict(self, state: MixtureState | None = None) -> dict[str, Any]:
        """Where each source is: versioned and JSON-able, by source name.

        Args:
            state: an earlier `state`; None is the present one.
        """
        kept = self._state if state is None else state
        return kept.to_dict(self.sources, seed=self.seed, by=self.options.by)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes where the state was saved. Weights, the amount of a step and the stop rule may
        differ, and sources may be new.

        Raises:
            MismatchError: the seed, `by` or version differs, or a source of the state is missing.
        """
        by = self.options.by
        loaded = MixtureState.from_dict(state, self.sources, seed=self.seed, by=by)
        self._state, self._last, self.record = loaded, None, None

    # Drawing

    def _weights(self, schedule: Schedule, step: int) -> dict[str, float]:
        past = Past(self._state.weights, self._state.signals)
        return self.options.weights(schedule, step, past)

    def _draw(self, weights: Weights, provider: Metadata) -> SampleTable:
        options, state = self.options, self._state
        active = self._active_weights(weights)
        queues = self._queues(provider, active > 0)
        drawn = StepDraws(sources=np.empty(0, np.int64), lacking=[], ended=True)
        if active.any():
            drawn = StepDrawer(options, state, active, queues).run()
        check_reachable(drawn, queues, options, state, self.peaks)
        counts = np.bincount(drawn.sources, minlength=len(self.sources))  # [sources]
        taken = queues.taken(counts)
        table = self._in_drawn_order(drawn.sources, taken.samples)
        summed = np.bincount(table.source, options.tokens(table), len(self.sources))
        tokens = summed.astype(np.int64)  # [sources]
        given = tokens if options.by == "tokens" else counts
        self.record = DrawRecord(step=state.step, weights=weights, bad=self._runs(taken.bad))
        self._last = table
        self._state = replace(
            state,
            step=state.step + 1,
            cursors=taken.cursors,
            counts=state.counts + counts,
            tokens=state.tokens + tokens,
            deficit=deficit_after(state.deficit, active, given, drawn.lacking),
            exhausted=np.where(queues.active, queues.exhausted_after(counts), state.exhausted),
            waiting=taken.waiting,
            bad=state.bad + taken.bad.counts(),
            weights=dict(weights),
            ended=drawn.ended,
        )
        return table

    def _active_weights(self, weights: Weights) -> Float64Array:
        """[sources] weights of those that may be drawn, with a sum of 1; all 0 if none may."""
        exhausted = self._state.exhausted | self._state.ended
        active = np.where(exhausted, 0.0, in_order(weights, self.sources))
        if active.any():
            active /= active.sum()
        return active

    def _queues(self, provider: Metadata, active: BoolArray) -> SourceQueues:
        state = self._state
        return SourceQueues(
            provider,
            self.options,
            active=active,
            cursors=state.cursors,
            waiting=state.waiting,
            step=state.step,
        )

    def _runs(self, samples: SampleTable) -> dict[str, tuple[tuple[int, int], ...]]:
        """By source, the positions of samples that are ordered by source."""
        counts = samples.counts()
        giving = np.flatnonzero(counts)  # sources
        runs = runs_of(samples.position, counts[giving])
        return {self.sources[s]: run for s, run in zip(giving.tolist(), runs)}

    def _in_drawn_order(self, drawn: Int64Array, samples: SampleTable) -> SampleTable:
        """The samples taken, in the order of the shuffled draws.

        Shuffled draws of sources [1, 0, 1] and samples [a0, b0, b1] give [b0, a0, b1].

        Args:
            drawn: [draws] source of each, not shuffled.
            samples: [draws] by source, and for each source in the order of its queue.
        """
        if not len(drawn):
            return SampleTable.empty(self.sources)
        order = by_source(shuffled(drawn, self.seed, self.step), len(self.sources))
        rows = np.empty(len(order), np.int64)  # [draws] the row of samples that each draw gets
        rows[order] = np.arange(len(order))
        return samples[rows]


def _plain(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=lambda v: v.item(), allow_nan=False))
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"signal {name}={value!r} is not made of finite numbers, text, lists and mappings "
            f"({error}); report plain numbers, such as loss.item()"
        ) from error
