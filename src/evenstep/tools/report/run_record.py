"""A run's step logs: read, also while they are being written, and told where the time went."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.batch.composition import Composition
from evenstep.errors import ConfigurationError
from evenstep.files import cannot
from evenstep.plan.length_moments import LengthMoments
from evenstep.protocol.slow_ranks import SlowRank
from evenstep.tools.report.picture import INK, dress, new_figure, save

LOSSES = {
    "work": "work on tokens",
    "padding": "padding",
    "ranks": "waiting for ranks",
    "slow": "waiting for a slow rank",
    "data": "waiting for data",
}
"""Where the time of an update goes: names, and the words for them."""
_COLOURS = ("#0072b2", "#e69f00", "#a0a0a0", "#d55e00", "#cc79a7")  # in the order of `LOSSES`
_NAMED = 8
"""Slow ranks that are shown."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecord:
    """The updates of a log, in order. The first of each pass counts only in `first_waits`, because
    nothing was ready for it, and one that is not whole yet does not count.

    An update's steps are taken together: a trainer may fetch all of them before it trains on any,
    and the time of all is then in the line of the last.
    """

    name: str
    """Name of the file."""
    ranks: int
    updates: Mapping[str, Float64Array]
    """[updates] of each figure: ``wait`` and ``train`` in seconds, on the rank that wrote the log;
    ``imbalance``; ``imbalance_measured``, 0 where it is unknown; ``slow``, how much more time than
    its work explains the slowest rank needs; ``images``, ``tokens``, and ``padding``, the share of
    padded tokens that are padding."""
    first_waits: tuple[float, ...]
    """[passes] seconds to the first step."""
    composition: float
    """See `evenstep.batch.composition`."""
    slow: tuple[tuple[SlowRank, int | None], ...]
    """Ranks that needed more time than their work explains, with the step at which that was over.
    """

    def __len__(self) -> int:
        return len(self.updates["wait"])

    def last(self, updates: int) -> RunRecord:
        """The last updates; the composition stays that of the whole log."""
        kept = {name: column[-updates:] for name, column in self.updates.items()}
        return replace(self, updates=kept)

    @property
    def seconds(self) -> Float64Array:
        """[updates] time of each."""
        seconds: Float64Array = self.updates["wait"] + self.updates["train"]
        return seconds

    @property
    def losses(self) -> dict[str, Float64Array]:
        """[updates] seconds by what they were spent on, in the order of `LOSSES`.

        A step takes as long as its costliest rank, so an average rank spends 1 - 1 / imbalance of
        it waiting for the others; and for a slow rank, what that needs more. Padding takes its
        share of tokens of the rest. These are predictions, from costs, or from what was measured,
        and tokens; the wait for data is measured.
        """
        slow = self.updates["train"] * (1 - 1 / (1 + self.updates["slow"]))
        train = self.updates["train"] - slow
        measured = self.updates["imbalance_measured"]
        imbalance = np.where(measured > 0, measured, self.updates["imbalance"])
        ranks = train * (1 - 1 / np.maximum(imbalance, 1))
        padding = (train - ranks) * self.updates["padding"]
        return {
            "work": train - ranks - padding,
            "padding": padding,
            "ranks": ranks,
            "slow": slow,
            "data": self.updates["wait"],
        }

    @property
    def shares(self) -> dict[str, float]:
        """`losses` as shares of the whole time; all 0 before the first update."""
        total = float(self.seconds.sum()) or 1.0
        return {name: float(seconds.sum()) / total for name, seconds in self.losses.items()}

    @property
    def tokens_per_second(self) -> float:
        return float(self.updates["tokens"].sum()) / (float(self.seconds.sum()) or 1.0)

    @property
    def figures(self) -> dict[str, str]:
        """All figures as text, in the order in which they are shown.

        Every run has the same names, so that runs can be compared, except for those of images.
        """
        mean = {
            name: float(column.mean()) if len(self) else 0.0
            for name, column in self.updates.items()
        }
        found = {
            "updates": f"{len(self):,}",
            "ranks": f"{self.ranks:,}",
            "to the first step": f"{max(self.first_waits, default=0.0):.2f} s",
            "time of an update": f"{mean['wait'] + mean['train']:.3f} s",
            "tokens per second": f"{self.tokens_per_second:,.0f}",
        }
        for name, share in self.shares.items():
            found[f"time: {LOSSES[name]}"] = f"{share:.1%}"
        found["imbalance"] = f"{mean['imbalance']:.3f}"
        measured = self.updates["imbalance_measured"]
        if (measured > 0).any():
            found["imbalance, measured"] = f"{measured[measured > 0].mean():.3f}"
        for each, end in self.slow[-_NAMED:]:
            until = "" if end is None else f", until step {end:,}"
            since = f"since step {each.step:,} of epoch {each.epoch}"
            found[f"rank {each.rank} slow {since}"] = f"{each.share:.0%} more time{until}"
        if mean["images"]:
            found["images of an update"] = f"{mean['images']:,.1f}"
        found["padding"] = f"{mean['padding']:.1%}"
        found["composition"] = f"{self.composition:.2f}"
        return found

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "log": self.name,
            "updates": len(self),
            "ranks": self.ranks,
            "shares": self.shares,
            "tokens_per_second": self.tokens_per_second,
            "composition": self.composition,
            "slow": [{**each._asdict(), "until": end} for each, end in self.slow],
        }


def plot_losses(runs: Sequence[RunRecord], path: Path) -> None:
    """Draws where the time of each update went, one panel per run, and writes a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(7, 0.6 + 1.9 * len(runs))
    axes = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
    for axis, run in zip(axes, runs):
        below = np.zeros(len(run) + min(len(run), 1))  # and where the last one ends
        numbers = np.arange(len(below))
        for (name, seconds), colour in zip(run.losses.items(), _COLOURS):
            above = below + np.append(seconds, seconds[-1:])
            axis.fill_between(
                numbers, below, above, step="post", color=colour, linewidth=0, label=LOSSES[name]
            )
            below = above
        axis.set_ylim(0, 1.3 * float(np.quantile(below, 0.98)))
        dress(axis, run.name, "seconds")
        axis.margins(x=0)
    axes[-1].set_xlabel("update", color=INK)
    handles, _ = axes[0].get_legend_handles_labels()
    save(figure, path, handles)


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Reads the steps written so far. The last line may be incomplete.

    Raises:
        ConfigurationError: the file cannot be read, or is not a step log.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise cannot("read", path, error, "give the file of step_log=") from error
    except UnicodeDecodeError as error:
        raise _damaged(path, 1, "it is not UTF-8") from error
    updates: list[dict[str, float]] = []
    steps: list[dict[str, float]] = []
    first_waits: list[float] = []
    composition = Composition()
    slow: dict[tuple[int, ...], tuple[SlowRank, int | None]] = {}
    started = begins = False
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            value = json.loads(line)
            if "started" in value:
                started = begins = True
                steps.clear()
                ranks = int(value["ranks"])
                continue
            steps.append(_figures_of(value))
            _note_slow(slow, value)
            ends_update = bool(value.get("ends_update", True))
            moments = {name: np.float64(m) for name, m in value["moments"].items()}
            composition.add_moments(LengthMoments(**moments), ends_update=ends_update)
            if begins and len(steps) == 1:
                first_waits.append(steps[0]["wait"])
            if not ends_update:
                continue
            if not begins:
                updates.append(_together(steps))
            steps.clear()
            begins = False
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _damaged(path, number, f"it is no step ({error})") from error
    if not started:
        raise _damaged(path, 1, "there is none" if not text else "it does not begin a run")
    return RunRecord(
        name=Path(path).name,
        ranks=ranks,
        updates={name: np.array([each[name] for each in updates], np.float64) for name in _NAMES},
        first_waits=tuple(first_waits),
        composition=composition.value,
        slow=tuple(slow.values()),
    )


def _note_slow(slow: dict[tuple[int, ...], tuple[SlowRank, int | None]], line: Any) -> None:
    """Adds the slow ranks of a line to those of the lines before."""
    now = [SlowRank(**each) for each in line.get("slow", ())]
    for key, (each, end) in slow.items():
        slow[key] = each, line["step"] if end is None else end
    for each in now:
        key = each.rank, each.epoch, each.step
        share = max(each.share, slow[key][0].share) if key in slow else each.share
        slow[key] = each._replace(share=share), None


_READ = ("wait", "train", "imbalance", "tokens", "padded_tokens", "cost")
_NAMES = ("wait", "train", "imbalance", "imbalance_measured", "slow", "images", "tokens", "padding")


def _figures_of(line: dict[str, Any]) -> dict[str, float]:
    return {
        **{name: float(line[name]) for name in _READ},
        "imbalance_measured": float(line.get("imbalance_measured") or 0.0),
        "slow": max((float(each["share"]) for each in line.get("slow", ())), default=0.0),
        "images": float(line.get("images", 0)),
    }


def _together(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The figures of an update. Its steps last as their costs and imbalances say, however the time
    of all is spread over their lines."""
    columns = {name: np.array([step[name] for step in steps]) for name in steps[0]}
    found = {name: float(column.sum()) for name, column in columns.items()}
    weights = columns["cost"] if found["cost"] > 0 else None
    for name in ("imbalance", "imbalance_measured", "slow"):
        known = name == "slow" or bool(columns[name].all())
        found[name] = float(np.average(columns[name], weights=weights)) if known else 0.0
    padded = found["padded_tokens"]
    return {**found, "padding": 1 - found["tokens"] / padded if padded else 0.0}


def _damaged(path: str | os.PathLike[str], number: int, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"line {number} of {path} is not that of a step log: {why}; give the file of step_log="
    )
