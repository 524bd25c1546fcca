"""`MixtureState`: all that a mixture knows of the steps before, and its saved form.

The saved form has, by name of each source, a few numbers and the metadata of its samples that wait
under a curriculum. So a state can be loaded with more sources, or with sources in another order.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray, Float64Array, Int64Array
from evenstep.errors import MismatchError
from evenstep.mixture.sample_table import SampleTable
from evenstep.plan.saved_state import headed, reading
from evenstep.plan.value_checks import COUNT, increasing, require

_MOST_OWED = 2.0**53
"""Samples or tokens: above it a float does not count one by one."""
_SAVED = ("position", "shard", "index", "lengths")
"""Columns of the samples that wait."""
_SOURCE_SCHEMA = {
    "cursor": COUNT,
    "samples": COUNT,
    "tokens": COUNT,
    "deficit": float,
    "exhausted": bool,
    "waiting": Mapping,
    "bad": COUNT,
}
_SCHEMA = {
    "step": COUNT,
    "ended": bool,
    "weights": ({str: float}, None),
    "signals": Mapping,
    "sources": {str: _SOURCE_SCHEMA},
}


@dataclass(frozen=True, kw_only=True)
class MixtureState:
    """Never changes: each step makes the next one. Arrays are [sources]."""

    step: int
    """The next one."""
    cursors: Int64Array
    """Position of the first sample never looked at; those below are drawn, or wait."""
    counts: Int64Array
    """Samples drawn."""
    tokens: Int64Array
    """Tokens of these."""
    deficit: Float64Array
    """Tokens or samples that the source is behind its target share, carried to the next step;
    negative if it is ahead. See `token_shares`."""
    exhausted: BoolArray
    """Whether it has ended for good."""
    waiting: SampleTable
    """Too long so far, by source and position."""
    bad: Int64Array
    """Samples that were passed over because they cannot be used, counted in each pass."""
    weights: Mapping[str, float] | None
    """Weights of the last step; None before the first."""
    signals: dict[str, Any]
    """What trainers reported last, by name."""
    ended: bool
    """Whether the mixture has ended."""

    @classmethod
    def fresh(cls, sources: Sequence[str]) -> MixtureState:
        zeros = np.zeros(len(sources), np.int64)
        return cls(
            step=0,
            cursors=zeros,
            counts=zeros,
            tokens=zeros,
            deficit=zeros.astype(np.float64),
            exhausted=zeros.astype(np.bool_),
            waiting=SampleTable.empty(sources),
            bad=zeros,
            weights=None,
            signals={},
            ended=False,
        )

    def with_signals(self, signals: Mapping[str, Any]) -> MixtureState:
        return replace(self, signals=dict(signals))

    def to_dict(self, sources: Sequence[str], *, seed: int, by: str) -> dict[str, Any]:
        columns = {
            "cursor": self.cursors.tolist(),
            "samples": self.counts.tolist(),
            "tokens": self.tokens.tolist(),
            "deficit": self.deficit.tolist(),
            "exhausted": self.exhausted.tolist(),
            "waiting": _rows(self.waiting),
            "bad": self.bad.tolist(),
        }
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
        return headed(
            "mixture",
            seed=seed,
            by=by,
            step=self.step,
            ended=self.ended,
            weights=None if self.weights is None else dict(self.weights),
            signals=copy.deepcopy(self.signals),
            sources=dict(zip(sources, rows)),
        )

    @classmethod
    def from_dict(
        cls, given: Mapping[str, Any], sources: Sequence[str], *, seed: int, by: str
    ) -> MixtureState:
        """Inverse of `to_dict`.

        Raises:
            MismatchError: the state is of another mixture, or damaged.
        """
        with reading(given, "mixture", _SCHEMA):
            for name, value in (("seed", seed), ("by", by)):
                if given.get(name) != value:
                    raise MismatchError(
                        f"the state was saved with {name}={given.get(name)!r}, and this mixture "
                        f"has {value!r}; load it into a mixture with the same {name}"
                    )
            saved = given["sources"]
            missing = [name for name in saved if name not in sources]
            if missing:
                raise MismatchError(
                    f"the state has source {missing[0]!r}, which this mixture lacks; keep the "
                    "source, with weight 0 if nothing more is to be drawn from it"
                )
            fresh = cls.fresh(sources)
            numbers = dict.fromkeys(("cursor", "samples", "tokens", "bad"), 0)
            new = {**numbers, "deficit": 0.0, "exhausted": False, "waiting": {}}
            rows = [saved.get(name, new) for name in sources]
            for row in rows:
                positions = row["waiting"].get("position", [])
                require(increasing(positions, row["cursor"]), "waiting.position", positions)
                drawn = row["cursor"] - len(positions) - row["bad"]
                require(row["samples"] == drawn, "samples", row["samples"])
                require(abs(row["deficit"]) < _MOST_OWED, "deficit", row["deficit"])

            def column(name: str, dtype: Any) -> npt.NDArray[Any]:
                return np.array([row[name] for row in rows], dtype)

            return replace(
                fresh,
                step=int(given["step"]),
                cursors=column("cursor", np.int64),
                counts=column("samples", np.int64),
                tokens=column("tokens", np.int64),
                deficit=column("deficit", np.float64),
                exhausted=column("exhausted", np.bool_),
                waiting=_table([row["waiting"] for row in rows], sources),
                bad=column("bad", np.int64),
                weights=given["weights"],
                signals=copy.deepcopy(dict(given["signals"])),
                # New sources have samples to draw.
                ended=bool(given["ended"]) and len(saved) == len(sources),
            )


def _rows(waiting: SampleTable) -> list[dict[str, Any]]:
    """[sources] columns of the samples of each that wait; empty if none does."""
    counts = waiting.counts()
    rows: list[dict[str, Any]] = [{} for _ in counts]
    ends = counts.cumsum()
    for source in np.flatnonzero(counts):
        saved = waiting[ends[source] - counts[source] : ends[source]].to_dict()
        rows[source] = {name: saved[name] for name in _SAVED}
    return rows


def _table(rows: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> SampleTable:
    """Inverse of `_rows`."""
    tables = [
        SampleTable.from_dict(
            {**saved, "source": [source] * len(saved["position"]), "sources": list(sources)}
        )
        for source, saved in enumerate(rows)
        if saved
    ]
    return SampleTable.concatenate(tables or [SampleTable.empty(sources)])
