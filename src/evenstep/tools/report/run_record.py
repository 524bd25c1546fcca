"""A run's step logs: read, also while they are being written, and shown as one HTML page.

The page tells where the time of a run went, or of two to compare. It is one file without fonts,
images, scripts or requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.batch.composition import Composition
from evenstep.errors import ConfigurationError
from evenstep.files import cannot
from evenstep.plan.length_moments import LengthMoments
from evenstep.version import __version__

LOSSES = {
    "work": "work on tokens",
    "padding": "padding",
    "ranks": "waiting for ranks",
    "data": "waiting for data",
}
"""Where the time of a step goes: names, and the words for them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecord:
    """The steps of a log, in order. The first step of each pass counts only in `first_waits`,
    because nothing was ready for it."""

    name: str
    """Name of the file."""
    ranks: int
    steps: Mapping[str, Float64Array]
    """[steps] of each figure: ``wait`` and ``train`` in seconds, on the rank that wrote the log;
    ``imbalance``, ``text_imbalance`` and ``vision_imbalance``; ``imbalance_measured``, 0 where it
    is unknown; ``images``, ``tokens``, and
    ``padding``, the share of padded tokens that are padding."""
    first_waits: tuple[float, ...]
    """[passes] seconds to the first step."""
    composition: float
    """See `evenstep.batch.composition`."""

    def __len__(self) -> int:
        return len(self.steps["wait"])

    def last(self, steps: int) -> RunRecord:
        """The last steps; the composition stays that of the whole log."""
        return replace(self, steps={name: column[-steps:] for name, column in self.steps.items()})

    @property
    def seconds(self) -> Float64Array:
        """[steps] time of each step."""
        seconds: Float64Array = self.steps["wait"] + self.steps["train"]
        return seconds

    @property
    def losses(self) -> dict[str, Float64Array]:
        """[steps] seconds by what they were spent on, in the order of `LOSSES`.

        A step takes as long as its costliest rank, so an average rank spends 1 - 1 / imbalance of
        it waiting for the others. Padding takes its share of tokens of the rest. Both are
        predictions, from costs, or from what steps were measured to take, and tokens; the wait for
        data is measured.
        """
        train = self.steps["train"]
        measured = self.steps["imbalance_measured"]
        imbalance = np.where(measured > 0, measured, self.steps["imbalance"])
        ranks = train * (1 - 1 / np.maximum(imbalance, 1))
        padding = (train - ranks) * self.steps["padding"]
        return {
            "work": train - ranks - padding,
            "padding": padding,
            "ranks": ranks,
            "data": self.steps["wait"],
        }

    @property
    def shares(self) -> dict[str, float]:
        """`losses` as shares of the whole time; all 0 before the first step."""
        total = float(self.seconds.sum()) or 1.0
        return {name: float(seconds.sum()) / total for name, seconds in self.losses.items()}

    @property
    def tokens_per_second(self) -> float:
        return float(self.steps["tokens"].sum()) / (float(self.seconds.sum()) or 1.0)

    @property
    def figures(self) -> dict[str, str]:
        """All figures as text, in the order in which they are shown.

        Every run has the same names, so that runs can be compared, except for those of images.
        """
        mean = {
            name: float(column.mean()) if len(self) else 0.0 for name, column in self.steps.items()
        }
        found = {
            "steps": f"{len(self):,}",
            "ranks": f"{self.ranks:,}",
            "to the first step": f"{max(self.first_waits, default=0.0):.2f} s",
            "time of a step": f"{mean['wait'] + mean['train']:.3f} s",
            "tokens per second": f"{self.tokens_per_second:,.0f}",
        }
        for name, share in self.shares.items():
            found[f"time: {LOSSES[name]}"] = f"{share:.1%}"
        found["imbalance"] = f"{mean['imbalance']:.3f}"
        measured = self.steps["imbalance_measured"]
        if (measured > 0).any():
            found["imbalance, measured"] = f"{measured[measured > 0].mean():.3f}"
        if (self.steps["vision_imbalance"] > 1).any():
            found["imbalance, language model"] = f"{mean['text_imbalance']:.3f}"
            found["imbalance, vision tower"] = f"{mean['vision_imbalance']:.3f}"
        if mean["images"]:
            found["images of a step"] = f"{mean['images']:,.1f}"
        found["padding"] = f"{mean['padding']:.1%}"
        found["composition"] = f"{self.composition:.2f}"
        return found

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "log": self.name,
            "steps": len(self),
            "ranks": self.ranks,
            "shares": self.shares,
            "tokens_per_second": self.tokens_per_second,
            "composition": self.composition,
        }


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
    steps: list[dict[str, float]] = []
    first_waits: list[float] = []
    composition = Composition()
    started = begins = False
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            value = json.loads(line)
            if "started" in value:
                started = begins = True
                ranks = int(value["ranks"])
                continue
            figures = _figures_of(value)
            if begins:
                first_waits.append(figures["wait"])
            else:
                steps.append(figures)
            begins = False
            moments = {name: np.float64(m) for name, m in value["moments"].items()}
            composition.add_moments(
                LengthMoments(**moments), ends_update=bool(value.get("ends_update", True))
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _damaged(path, number, f"it is no step ({error})") from error
    if not started:
        raise _damaged(path, 1, "there is none" if not text else "it does not begin a run")
    return RunRecord(
        name=Path(path).name,
        ranks=ranks,
        steps={name: np.array([step[name] for step in steps], np.float64) for name in _NAMES},
        first_waits=tuple(first_waits),
        composition=composition.value,
    )


def _figures_of(line: dict[str, Any]) -> dict[str, float]:
    tokens, padded = float(line["tokens"]), float(line["padded_tokens"])
    return {
        "wait": float(line["wait"]),
        "train": float(line["train"]),
        "imbalance": float(line["imbalance"]),
        "imbalance_measured": float(line.get("imbalance_measured") or 0.0),
        "text_imbalance": float(line.get("text_imbalance", line["imbalance"])),
        "vision_imbalance": float(line.get("vision_imbalance", 1.0)),
        "images": float(line.get("images", 0)),
        "tokens": tokens,
        "padding": 1 - tokens / padded if padded else 0.0,
    }


_NAMES = (
    *("wait", "train", "imbalance", "imbalance_measured", "text_imbalance", "vision_imbalance"),
    *("images", "tokens", "padding"),
)


def _damaged(path: str | os.PathLike[str], number: int, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"line {number} of {path} is not that of a step log: {why}; give the file of step_log="
    )


_STYLE = """
:root { color-scheme: light dark; }
body { max-width: 1080px; margin: 0 auto; padding: 2rem 1.25rem; font: 16px/1.5 system-ui; }
p, footer { font-size: .9rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .3rem .8rem; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
.columns { display: flex; gap: 1px; height: 190px; }
.columns div { flex: 1; display: flex; flex-direction: column-reverse; }
.legend i { display: inline-block; width: .8em; height: .8em; }
.work { background: #0b7a5c; } .padding { background: #c08a3e; }
.ranks { background: #5a67c4; } .data { background: #b03060; }
"""
_MOST = 60
"""Most columns of a chart; with more steps, each stands for several."""


def run_page(runs: Sequence[RunRecord]) -> str:
    """The page as text, to be written in UTF-8.

    Args:
        runs: one, or before and after.
    """
    title = escape(" and ".join(run.name for run in runs))
    body = [f"<h1>{title}</h1>", _figures(runs)]
    for run in runs:
        body.append(f"<h2>{escape(run.name) if len(runs) > 1 else 'Where the time went'}</h2>")
        body += [_legend(run), _chart(run) if len(run) else "<p>No step has ended yet.</p>"]
    body.append(
        "<p>Each column shows the shares of one or more steps, the first ones on the left. Waits "
        "for data are measured on the rank that writes the log. Waits for ranks and padding are "
        "shares of the time between steps, predicted from costs and tokens: a step takes as long "
        "as its costliest rank. The first step of each pass is left out.</p>"
        f"<footer>evenstep {__version__}</footer>"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{title}</title>\n<style>{_STYLE}</style>\n'
        "</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


def _figures(runs: Sequence[RunRecord]) -> str:
    found = [run.figures for run in runs]
    names = dict.fromkeys(name for figures in found for name in figures)
    rows = [[name, *(figures.get(name, "") for figures in found)] for name in names]
    top = "".join(f"<th>{escape(name)}</th>" for name in ("", *(run.name for run in runs)))
    lines = (f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{''.join(lines)}</table>"


def _legend(run: RunRecord) -> str:
    items = (
        f'<i class="{name}"></i> {LOSSES[name]} {share:.1%}' for name, share in run.shares.items()
    )
    return f'<p class="legend">{" &emsp; ".join(items)}</p>'


def _chart(run: RunRecord) -> str:
    groups = np.array_split(np.arange(len(run)), min(len(run), _MOST))
    losses = np.stack(list(run.losses.values()), axis=1)  # [steps, losses]
    seconds = np.stack([losses[group].sum(axis=0) for group in groups])
    shares = seconds / np.maximum(seconds.sum(axis=1, keepdims=True), 1e-12)
    columns = []
    for group, heights in zip(groups, shares.tolist()):
        steps = f"steps {group[0] + 1:,} to {group[-1] + 1:,}"
        pieces = (
            f'<i class="{name}" style="height:{height:.2%}" '
            f'title="{steps}: {height:.1%} {LOSSES[name]}"></i>'
            for name, height in zip(run.losses, heights)
            if height > 0
        )
        columns.append(f"<div>{''.join(pieces)}</div>")
    return f'<div class="columns">{"".join(columns)}</div>'
