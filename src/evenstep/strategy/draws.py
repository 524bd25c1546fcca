"""What a `DGraph` asks of a mixture: the samples of a step, and the weights of their draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evenstep.errors import ConfigurationError
from evenstep.mixture.sample_table import Metadata, SampleTable


class Draws(Protocol):
    """Draws the samples of each step from the sources: a `Mixer` of `evenstep.mixture`,
    or the user's own object. An object that has ``weights_at(step)`` too says by which weights, by
    source, it drew a step; the plan records them."""

    def draw(self, step: int, provider: Metadata) -> SampleTable:
        """Samples of a step in the order drawn: a function of the step and the mixture's state,
        never of timing. The table numbers the same sources in every step."""
        ...


class Mixes(Protocol):
    """A job's mixture, which draws by the weights that a strategy passes."""

    def draw_with(self, step: int, provider: Metadata, schedule: Any) -> SampleTable:
        """As `Draws.draw`, by a schedule, a mapping from sources to weights or a function of the
        step; None is the mixture's own schedule."""
        ...


@dataclass(frozen=True, eq=False)
class DrawnSamples:
    """Samples of a step, and what drew them."""

    by: object
    """The mixture."""
    schedule: Any
    """The schedule passed to it."""
    samples: SampleTable
    weights: Mapping[str, float]
    """By source; empty if the mixture does not report them."""


def draw(
    schedule: Any, mixture: Mixes | None, step: int, metadata: Metadata, before: list[DrawnSamples]
) -> DrawnSamples:
    """Draws a step, or returns the samples that the same mixture has drawn in it before.

    Args:
        schedule: an object that draws, or the schedule by which the mixture is to draw.
        mixture: the job's, if it has one.
        step: its number.
        metadata: of the sources.
        before: all draws of this step; a new one is appended.

    Raises:
        ConfigurationError: there is nothing to draw from, or the mixture has drawn by other
            weights.
    """
    draws: Draws | None = schedule if hasattr(schedule, "draw") else None
    by = mixture if draws is None else draws
    if by is None:
        raise ConfigurationError(
            f"mix({'' if schedule is None else type(schedule).__name__}) has no mixture to draw "
            "from: pass DGraph.of a mixture=, or mix an evenstep.mixture.Mixer"
        )
    for known in before:
        if known.by is by:
            if draws is None and known.schedule is not schedule and known.schedule != schedule:
                raise ConfigurationError(
                    f"the mixture has drawn step {step} by other weights; a step is drawn once: "
                    "mix one graph, and derive the others from it"
                )
            return known
    if draws is None:
        assert mixture is not None
        samples = mixture.draw_with(step, metadata, schedule)
    else:
        samples = draws.draw(step, metadata)
    weights = dict(by.weights_at(step)) if hasattr(by, "weights_at") else {}
    before.append(DrawnSamples(by, None if draws is not None else schedule, samples, weights))
    return before[-1]
