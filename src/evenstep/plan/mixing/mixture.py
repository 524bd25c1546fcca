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
import numpy.typing as npt

from evenstep.errors import ConfigurationError, MismatchError, SampleError
from evenstep.plan.checks import check_at_least, check_given
from evenstep.plan.mixing.curriculum import LengthCurriculum
from evenstep.plan.mixing.drawing import Drawing, Drawn
from evenstep.plan.mixing.line import Admission, Line, Taken
from evenstep.plan.mixing.pattern import shuffled
from evenstep.plan.mixing.record import DrawRecord, Phase, runs
from evenstep.plan.mixing.schedules import Live, Past, PerStep, Schedule, as_schedule
from evenstep.plan.mixing.state import MixtureState
from evenstep.plan.mixing.stop import ALL_EXHAUSTED, ALL_REPEATED, REPEAT, stop_rule
from evenstep.plan.mixing.token_shares import draw_shares, expected_shares, settled_balance
from evenstep.plan.mixing.weights import Weights, check_names, check_weights, in_order
from evenstep.plan.samples import Metadata, SampleTable

__all__ = ["Mixture"]

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_UNITS = ("samples", "tokens")


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
                `evenstep.plan.mixing.stop`.
            curriculum: longest sample of each step.
            modalities: whose lengths are a sample's tokens; None is all of them together.
            sizes: samples of a pass of each source; None, or left out, where it is not known.
            seed: 64 bits.

        Raises:
            ConfigurationError: an argument is out of range; weights are negative, not finite, all
                0, or of a source that does not exist.
        """
        check_given(seed=seed)
        check_at_least(0, seed=seed)
        if seed >= 1 << 64:
            raise ConfigurationError(f"seed={seed} must have at most 64 bits")
        self.sources = tuple(sources)
        doubled = sorted({name for name in self.sources if self.sources.count(name) > 1})
        if not self.sources or doubled:
            raise ConfigurationError(
                f"sources must have names, each another one; {doubled or 'none'} given"
            )
        if (samples_per_step is None) == (tokens_per_step is None):
            raise ConfigurationError(
                f"samples_per_step={samples_per_step} and tokens_per_step={tokens_per_step}; give "
                "one of them: it says how much a step draws"
            )
        check_at_least(1, samples_per_step=samples_per_step, tokens_per_step=tokens_per_step)
        if unit not in _UNITS:
            raise ConfigurationError(f"unit={unit!r} must be one of {', '.join(_UNITS)}")
        self.schedule = as_schedule(schedule)
        self.samples_per_step = samples_per_step
        self.tokens_per_step = tokens_per_step
        self.unit = unit
        self.stop = stop_rule(stop)
        self.curriculum = curriculum
        self.modalities = None if modalities is None else tuple(modalities)
        self.seed = seed
        if curriculum is not None and self.stop == ALL_REPEATED:
            raise ConfigurationError(
                f"stop={stop!r} ends when each source was read once, and under a curriculum "
                "samples of one pass come after those of the next; choose all_exhausted or repeat"
            )
        self._sizes = self._checked_sizes(sizes or {})
        self._state = MixtureState.fresh(self.sources)
        self._check_schedule()
        self._last: SampleTable | None = None
        self.record: DrawRecord | None = None
        """Of the step drawn last; None before."""

    @property
    def _balances(self) -> bool:
        """Whether what sources gave is held against their weights. Not where weights and steps
        both count samples: there every draw has the right chances by itself."""
        return self.unit == "tokens" or self.tokens_per_step is not None

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
        return self._weights(step)

    def report(self, **signals: Any) -> None:
        """What trainers measured, for `Live` schedules, such as ``loss_by_source={"web": 2.1}``.
        Counts from the next draw on, and is recorded with it.

        Raises:
            ConfigurationError: a signal is not made of what JSON has.
        """
        plain = {name: _plain(name, value) for name, value in signals.items()}
        self._state.signals.update(plain)

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
        schedule = self.schedule if schedule is None else as_schedule(schedule)
        signals = self._state.signals if isinstance(schedule, Live) else None
        return self._draw(self._weights(step, schedule), provider, signals, schedule.peaks())

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

    def state_dict(self) -> dict[str, Any]:
        """Where each source is: versioned and JSON-able, by source name."""
        return self._state.to_dict(self.sources, seed=self.seed, unit=self.unit)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where the state was saved. Weights, the amount of a step and the stop rule may
        be others, and sources may be new.

        Raises:
            MismatchError: it is of another seed, unit or version, or of a source that is missing.
        """
        loaded = MixtureState.from_dict(state, self.sources, seed=self.seed, unit=self.unit)
        self._state, self._last, self.record = loaded, None, None

    # Construction

    def _checked_sizes(self, sizes: Mapping[str, int | None]) -> list[int | None]:
        check_names(sizes, self.sources, "sizes")
        for name, size in sizes.items():
            check_at_least(1, **{f"size of source {name!r}": size})
        found = [sizes.get(name) for name in self.sources]
        unknown = [name for name, size in zip(self.sources, found) if size is None]
        if self.stop == ALL_REPEATED and unknown:
            raise ConfigurationError(
                f'stop="{ALL_REPEATED}" must know when a source has been read once, and the size '
                f"of {unknown[0]!r} is not known; give sizes=, or choose another rule"
            )
        return found

    def _check_schedule(self) -> None:
        peaks = self.schedule.peaks()
        if peaks is not None:
            check_names(peaks, self.sources, "weights")
        if isinstance(self.schedule, PerStep):
            self._weights(0)
        elif isinstance(self.schedule, Live):
            check_names(self.schedule.initial, self.sources, "initial weights of Live")

    def _weights(self, step: int, schedule: Schedule | None = None) -> dict[str, float]:
        past = Past(self._state.weights, self._state.signals)
        of = f"weights of step {step:,}"
        weights = check_weights((schedule or self.schedule).weights(step, past), of)
        check_names(weights, self.sources, of)
        return weights

    # Drawing

    def _draw(
        self,
        weights: Weights,
        provider: Metadata,
        signals: Mapping[str, Any] | None,
        peaks: Mapping[str, float] | None = None,
    ) -> SampleTable:
        state = self._state
        named = in_order(weights, self.sources)
        live = np.where(state.over, 0.0, named)
        if state.ended:
            live[:] = 0.0
        lines = self._lines(live, provider)
        drawn = Drawn(sources=np.empty(0, np.int64), phases=[], ended=True)
        if live.any():
            live /= live.sum()
            drawn = self._drawing(live, lines).run()
        counts = np.bincount(drawn.sources, minlength=len(self.sources))
        takes = [None if line is None else line.taken(int(n)) for line, n in zip(lines, counts)]
        self._check_lost(drawn, lines, peaks)
        table = _assembled(self.sources, shuffled(drawn.sources, self.seed, state.step), takes)
        given = np.bincount(table.source, self._tokens(table), len(self.sources)).astype(np.int64)
        record = DrawRecord(
            step=state.step,
            weights=weights,
            counts=self._named(counts),
            positions={
                self.sources[s]: runs(take.samples.position)
                for s, take in enumerate(takes)
                if take is not None and len(take.samples)
            },
            tokens=self._named(given),
            phases=tuple(Phase(begin, self._named(shares)) for begin, shares in drawn.phases),
            signals=None if signals is None else dict(signals),
            ended=drawn.ended,
        )
        balance = state.balance
        if self._balances:
            balance = settled_balance(balance, live, given if self.unit == "tokens" else counts)
        self._state = state.after(
            weights=weights,
            takes=takes,
            counts=counts,
            given=given,
            balance=balance,
            ended=drawn.ended,
        )
        self._last, self.record = table, record
        return table

    def _lines(self, live: Float64Array, provider: Metadata) -> list[Line | None]:
        state = self._state
        repeats = self.stop in (REPEAT, ALL_REPEATED)
        limit = None if self.curriculum is None else self.curriculum.limit(state.step)
        admission = Admission(
            tokens=self._tokens,
            limit=limit,
            max_waiting=0 if self.curriculum is None else self.curriculum.max_waiting,
        )
        lines: list[Line | None] = [None] * len(self.sources)
        for source in np.flatnonzero(live).tolist():
            size, cursor = self._sizes[source], int(state.cursors[source])
            lines[source] = Line(
                source=source,
                name=self.sources[source],
                provider=provider,
                cursor=cursor,
                waiting=state.waiting[source],
                admission=admission,
                remaining=None if repeats or size is None else max(size - cursor, 0),
                peeks=not repeats and size is None,
                endless=repeats,
            )
        return lines

    def _drawing(self, live: Float64Array, lines: list[Line | None]) -> Drawing:
        state = self._state
        means = np.divide(
            state.tokens, state.counts, out=np.zeros(len(live)), where=state.counts > 0
        )
        guess = 64.0
        if self.tokens_per_step is not None and state.counts.any():
            mean = max(int(state.tokens.sum()) / int(state.counts.sum()), 1.0)
            guess = max(self.tokens_per_step / mean, 1.0)
        shares = live
        if self.unit == "tokens":
            shares = draw_shares(
                live,
                lines,
                state.balance,
                means,
                samples=self.samples_per_step,
                tokens=self.tokens_per_step,
            )
        elif self._balances:
            shares = expected_shares(live, state.balance, guess)
        first_pass = None
        if self.stop == ALL_REPEATED:
            sizes = np.array(self._sizes, np.int64)
            first_pass = np.where(live > 0, np.maximum(sizes - state.cursors, 0), 0)
        return Drawing(
            seed=self.seed,
            step=state.step,
            weights=live,
            shares=shares,
            lines=lines,
            samples=self.samples_per_step,
            tokens=self.tokens_per_step,
            guess=int(guess * 17 / 16) + 8,  # so that one look mostly is enough
            rule=self.stop,
            first_pass=first_pass,
        )

    def _check_lost(
        self,
        drawn: Drawn,
        lines: Sequence[Line | None],
        peaks: Mapping[str, float] | None,
    ) -> None:
        step = self._state.step
        if not drawn.ended and not len(drawn.sources):
            waiting = {line.name: len(line.waiting) for line in lines if line is not None}
            raise SampleError(
                f"nothing can be drawn in step {step:,}: all that is left is longer than the "
                f"curriculum admits ({self.curriculum}); raise its limits. Samples that wait: "
                f"{waiting}"
            )
        if drawn.ended and self.stop == ALL_EXHAUSTED and not self._state.ended and peaks:
            left = [
                name
                for source, name in enumerate(self.sources)
                if peaks.get(name) and lines[source] is None and not self._state.over[source]
            ]
            if left:
                raise SampleError(
                    f"in step {step:,} every source that has a weight has ended, and "
                    f"{', '.join(map(repr, left[:5]))} would have one in another step; let the "
                    "stages overlap, or choose stop='repeat'"
                )

    def _tokens(self, table: SampleTable) -> Int64Array:
        if self.modalities is None:
            columns = list(table.lengths.values())
        else:
            columns = [table.lengths[name] for name in self.modalities if name in table.lengths]
        total = np.zeros(len(table), np.int64)
        for column in columns:
            total = total + column
        return total

    def _named(self, values: npt.NDArray[Any]) -> dict[str, Any]:
        """By name, what is not 0."""
        return {self.sources[s]: values[s].item() for s in np.flatnonzero(values)}


def _assembled(
    sources: tuple[str, ...], drawn: Int64Array, takes: Sequence[Taken | None]
) -> SampleTable:
    """The samples of the draws, in their order."""
    tables = [take.samples for take in takes if take is not None and len(take.samples)]
    if not tables:
        return SampleTable.empty(sources)
    # Tables come by ascending source, and so do draws that are sorted by it.
    rows = np.empty(len(drawn), np.int64)
    rows[drawn.argsort(kind="stable")] = np.arange(len(drawn))
    return SampleTable.concatenate(tables)[rows]


def _plain(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, default=lambda v: v.item(), allow_nan=False))
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigurationError(
            f"signal {name}={value!r} is not made of finite numbers, text, lists and mappings "
            f"({error}); report plain numbers, such as loss.item()"
        ) from error
