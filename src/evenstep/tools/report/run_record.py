"""Reads the files of `evenstep.run_log`, also while they are being written."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.batch.composition import Composition
from evenstep.errors import ConfigurationError
from evenstep.files import cannot
from evenstep.plan.length_moments import LengthMoments

_NUMBERS = ("at", "wait", "train")
_FIGURES = ("imbalance", "text_imbalance", "vision_imbalance", "images", "padding", "tokens")


@dataclass(frozen=True, kw_only=True, eq=False)
class RunRecord:
    """The steps of a log, in order. Of each pass the first step is left out of everything but
    `first_waits`: nothing was ready for it."""

    name: str
    """Of the file."""
    counted: str
    """Whose samples and tokens: "all ranks", or one rank's."""
    ranks: int
    wait: Float64Array
    """[steps] seconds waited for data; of the rank that wrote the log."""
    train: Float64Array
    """[steps] seconds from the step to the request for the next one."""
    imbalance: Float64Array
    """[steps]"""
    text_imbalance: Float64Array
    """[steps] of the language model's part of a cost of two parts; `imbalance` for one of one."""
    vision_imbalance: Float64Array
    """[steps] of the vision tower's part; 1 where no rank has an image."""
    images: Float64Array
    """[steps] where they are counted, else 0."""
    padding: Float64Array
    """[steps] share of padded tokens that are padding; 0 where it is not known."""
    tokens: Float64Array
    """[steps]"""
    first_waits: tuple[float, ...]
    """[passes] seconds to the first step."""
    composition: float
    """See `evenstep.batch.composition`."""
    policy: str = ""
    """Of the loader; "" if the log does not say."""

    def __len__(self) -> int:
        return len(self.wait)

    def last(self, steps: int) -> RunRecord:
        """Its last steps; the composition stays that of the whole log."""
        columns = ("wait", "train", *_FIGURES)
        return replace(self, **{name: getattr(self, name)[-steps:] for name in columns})

    @property
    def shares(self) -> dict[str, float]:
        """Where the time went, as shares of 1; all 0 before the first step. See `losses`."""
        total = float((self.wait + self.train).sum())
        return {
            name: float(seconds.sum()) / total if total else 0.0
            for name, seconds in self.losses.items()
        }

    @property
    def losses(self) -> dict[str, Float64Array]:
        """[steps] seconds by what they went to. A step takes as long as its costliest rank, so a
        mean rank waits for the others for 1 - 1 / imbalance of it; of the rest, padding takes its
        share of tokens. Both go by predicted costs, while the wait for data is measured."""
        ranks = self.train * (1 - 1 / np.maximum(self.imbalance, 1))
        padding = (self.train - ranks) * self.padding
        return {
            "work": self.train - ranks - padding,
            "padding": padding,
            "ranks": ranks,
            "data": self.wait,
        }

    @property
    def tokens_per_second(self) -> float:
        seconds = float((self.wait + self.train).sum())
        return float(self.tokens.sum()) / seconds if seconds else 0.0


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """What a log says by now. Its last line may be half written.

    Raises:
        ConfigurationError: the file cannot be read, or is no step log.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise cannot("read", path, error, "give the file of step_log=") from error
    except UnicodeDecodeError as error:
        raise _damaged(path, 1, "it is not UTF-8") from error
    about: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    first_waits: list[float] = []
    composition = Composition()
    begins = False
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            value = json.loads(line)
            if "started" in value:
                about, begins = value, True
                ranks, counted = int(value["ranks"]), str(value["counted"])
                continue
            if begins:
                first_waits.append(float(value["wait"]))
            else:
                steps.append({name: float(value[name]) for name in _NUMBERS} | _figures(value))
            begins = False
            moments = {name: np.float64(m) for name, m in value["moments"].items()}
            composition.add_moments(
                LengthMoments(**moments), ends_update=bool(value.get("ends_update", True))
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _damaged(path, number, f"it is no step ({error})") from error
    if not about:
        raise _damaged(path, 1, "there is none" if not text else "it does not begin a run")
    columns = {
        name: np.array([step[name] for step in steps], np.float64)
        for name in ("wait", "train", *_FIGURES)
    }
    return RunRecord(
        name=Path(path).name,
        counted=counted,
        ranks=ranks,
        first_waits=tuple(first_waits),
        composition=composition.value,
        policy=str(about.get("policy", "")),
        **columns,
    )


def _figures(step: dict[str, Any]) -> dict[str, float]:
    tokens, padded = float(step["tokens"]), float(step["padded_tokens"] or 0)
    return {
        "imbalance": float(step["imbalance"]),
        "text_imbalance": float(step.get("text_imbalance", step["imbalance"])),
        "vision_imbalance": float(step.get("vision_imbalance", 1.0)),
        "images": float(step.get("images", 0)),
        "tokens": tokens,
        "padding": 1 - tokens / padded if padded else 0.0,
    }


def _damaged(path: str | os.PathLike[str], number: int, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"line {number} of {path} is not that of a step log: {why}; give the file of step_log="
    )
