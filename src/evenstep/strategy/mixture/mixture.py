"""`Mixture`: which samples of which sources are drawn in each step.

    weights of the step  ->  shares of draws  ->  pattern of the step  ->  next samples of sources
    (schedule)               (as they are, or     (seed, step)             (cursors, what waits)
                             by token balance)

Nothing here knows of ranks, loaders or clocks. What was drawn before is in the state and nowhere
else, so that a mixture which loads it goes on as this one would; and the record of a step is all
that is needed to draw it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.strategy.mixture.curriculum import LengthCurriculum
from evenstep.strategy.mixture.options import Options
from evenstep.strategy.mixture.pattern import shuffled
from evenstep.strategy.mixture.record import DrawRecord, Phase, runs_of
from evenstep.strategy.mixture.schedules import FeedbackSchedule, Past, Schedule, as_schedule
from evenstep.strategy.mixture.source_queues import UNKNOWN, SourceQueues, by_source
from evenstep.strategy.mixture.state import MixtureState
from evenstep.strategy.mixture.step_draws import Drawing, StepDraws, check_lost
from evenstep.strategy.mixture.stop import REPEAT, stop_rule
from evenstep.strategy.mixture.token_shares import settled_balance
from evenstep.strategy.mixture.weights import Weights, check_weights, in_order
from evenstep.strategy.sample_table import Metadata, SampleTable

__all__ = ["Mixture"]


class Mixture:
    """Draws steps, one after the other. See the module docstring."""

    def __init__(
        self,
        sources: Sequence[str],
        schedule: Schedule | Weights | Any,
        *,
        samples_per_step: int | None = None,
        tokens_per_step: int | None = None,
        unit: str = "samples",
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
            unit: what weights count, "samples" or "tokens".
            stop: "repeat", "first_exhausted", "all_exhausted" or "all_repeated"; see
                `evenstep.strategy.mixture.stop`.
            curriculum: longest sample of each step.
            modalities: whose lengths are a sample's tokens; None is all of them together.
            sizes: samples of a pass of each source; None, or left out, where it is not known.
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
            unit=unit,
            stop=stop_rule(stop),
            curriculum=curriculum,
            modalities=None if modalities is None else tuple(modalities),
            sizes=sizes or {},
            seed=seed,
        )
        """What it was told, checked."""
        self._state = MixtureState.fresh(self.sources)
        self._last: SampleTable | None = None
        self.record: DrawRecord | None = None
        """Of the step drawn last; None before."""

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
        """Whether nothing will be drawn any more, as the stop rule says."""
        return self._state.ended

    def weights_at(self, step: int) -> Weights:
        """Those that the last step was drawn with; of another step what the schedule says now.

        Raises:
            ConfigurationError: they are bad; names the step.
        """
        if self.record is not None and self.record.step == step:
            return self.record.weights
        return self._weights(self.options.schedule, step)

    def report(self, **signals: Any) -> None:
        """What trainers measured, for `FeedbackSchedule` schedules, such as ``loss_by_source={"web": 2.1}``.
        Counts from the next draw on, and is recorded with it.

        Raises:
            ConfigurationError: a signal is not made of what JSON has.
        """
        plain = {name: _plain(name, value) for name, value in signals.items()}
        self._state = self._state.with_signals({**self._state.signals, **plain})

    def draw(self, step: int, provider: Metadata) -> SampleTable:
        """The samples of a step, in the order in which they are drawn. Asked again for the step
        that was drawn last, it gives the same ones.

        Args:
            step: `Mixture.step`, or the one before.
            provider: gives the samples of each source from a position on.

        Returns:
            Fewer samples than a step holds only where the mixture ends, or a curriculum lets
            everything else wait. None after its end.

        Raises:
            ConfigurationError: bad weights at this step, or another step than the next one.
            SampleError: a sample exceeds a step, or a source that repeats has ended.
        """
        return self.draw_with(step, provider)

    def draw_with(
        self, step: int, provider: Metadata, schedule: Schedule | Weights | Any = None
    ) -> SampleTable:
        """As `draw`, with the weights that another schedule gives for this step; None is the
        mixture's own. They are recorded, and replayed, as any others.

        Raises:
            ConfigurationError, SampleError: as `draw` does.
        """
        if self.record is not None and self.record.step == step:
            assert self._last is not None
            return self._last
        if step != self.step:
            raise ConfigurationError(
                f"step {step} cannot be drawn now: step {self.step} is next, since each step goes "
                "on where the one before ended; load the state of that step, or see redrawn"
            )
        schedule = self.options.schedule if schedule is None else as_schedule(schedule)
        signals = self._state.signals if isinstance(schedule, FeedbackSchedule) else None
        return self._draw(self._weights(schedule, step), provider, signals, schedule.peaks())

    def replay(self, record: DrawRecord, provider: Metadata) -> SampleTable:
        """Draws the next step again as it was recorded; neither the schedule nor signals are
        asked.

        Raises:
            MismatchError: the record is of another step, or the same samples are not drawn.
        """
        if record.step != self.step:
            raise MismatchError(
                f"the record is of step {record.step}, and step {self.step} is next; replay the "
                "records from the state's step on, in order"
            )
        before = self._state
        if record.signals is not None:
            self._state = before.with_signals(record.signals)
        weights = check_weights(record.weights, "recorded weights")
        table = self._draw(weights, provider, record.signals)
        if self.record != record:
            self._state, self.record, self._last = before, None, None
            raise MismatchError(
                f"step {record.step} was recorded with other samples than are drawn now; sources, "
                "their order, and the options of the mixture must be as they were"
            )
        return table

    # State

    @property
    def state(self) -> MixtureState:
        """Where each source is. It does not change as the mixture goes on, so it may be kept, for
        `state_dict` to write out later."""
        return self._state

    def state_dict(self, state: MixtureState | None = None) -> dict[str, Any]:
        """Where each source is: versioned and JSON-able, by source name.

        Args:
            state: one that was kept; None is the present one.
        """
        kept = self._state if state is None else state
        return kept.to_dict(self.sources, seed=self.seed, unit=self.options.unit)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was saved. Weights, the amount of a step and the stop rule may
        be others, and sources may be new.

        Raises:
            MismatchError: it is of another seed, unit or version, or of a source that is missing.
        """
        unit = self.options.unit
        loaded = MixtureState.from_dict(state, self.sources, seed=self.seed, unit=unit)
        self._state, self._last, self.record = loaded, None, None

    # Drawing

    def _weights(self, schedule: Schedule, step: int) -> dict[str, float]:
        past = Past(self._state.weights, self._state.signals)
        return self.options.weights(schedule, step, past)

    def _draw(
        self,
        weights: Weights,
        provider: Metadata,
        signals: Mapping[str, Any] | None,
        peaks: Mapping[str, float] | None = None,
    ) -> SampleTable:
        options, state = self.options, self._state
        live = np.where(state.over, 0.0, in_order(weights, self.sources))
        if state.ended:
            live[:] = 0.0
        lines = SourceQueues(
            provider,
            live=live > 0,
            cursors=state.cursors,
            waiting=state.waiting,
            admission=options.admission(state.step),
            remaining=self._remaining(),
            endless=options.repeats,
        )
        drawn = StepDraws(sources=np.empty(0, np.int64), phases=[], ended=True)
        if live.any():
            live /= live.sum()
            drawn = Drawing.of(options, state, live, lines).run()
        check_lost(drawn, lines, options, state, peaks)
        counts = np.bincount(drawn.sources, minlength=len(self.sources))
        taken = lines.taken(counts)
        table = self._in_drawn_order(drawn.sources, taken.samples)
        given = np.bincount(table.source, options.tokens(table), len(self.sources))
        tokens = given.astype(np.int64)
        giving = np.flatnonzero(counts)
        runs = runs_of(taken.samples.position, counts[giving])
        record = DrawRecord(
            step=state.step,
            weights=weights,
            counts=options.named(counts),
            positions={self.sources[s]: run for s, run in zip(giving.tolist(), runs)},
            tokens=options.named(tokens),
            phases=tuple(Phase(begin, options.named(shares)) for begin, shares in drawn.phases),
            signals=None if signals is None else dict(signals),
            ended=drawn.ended,
        )
        balance = state.balance
        if options.balances:
            balance = settled_balance(balance, live, tokens if options.unit == "tokens" else counts)
        self._state = state.after(
            weights=weights,
            taken=taken,
            over=np.where(lines.live, lines.over_after(counts), state.over),
            counts=counts,
            tokens=tokens,
            balance=balance,
            ended=drawn.ended,
        )
        self._last, self.record = table, record
        return table

    def _remaining(self) -> Int64Array:
        if self.options.repeats:
            return np.full(len(self.sources), UNKNOWN)
        return self.options.left_of_pass(self._state.cursors)

    def _in_drawn_order(self, drawn: Int64Array, samples: SampleTable) -> SampleTable:
        """What was taken, in the order of the shuffled draws.

        Args:
            samples: by source, of each in order.
        """
        if not len(drawn):
            return SampleTable.empty(self.sources)
        order = by_source(shuffled(drawn, self.seed, self.step), len(self.sources))
        rows = np.empty(len(order), np.int64)
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
