"""What the runs of a corpus say: losses against those of fixed batches on the same seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from benchmarks.learning.experiment import Run
from benchmarks.learning.plans import BASE
from benchmarks.lib.report import markdown
from evenstep.arrays import Float64Array

_HEADER = ["policy", "held-out loss", "above fixed", "composition", "variance of means"]
_HEADER += ["tokens cv", "cosine", "imbalance", "steps"]


@dataclass(kw_only=True)
class CorpusResult:
    """All runs of one corpus."""

    name: str
    runs: dict[str, dict[int, Run]] = field(default_factory=dict)
    """Policy -> seed -> run."""
    cosines: dict[str, float] = field(default_factory=dict)

    def above_fixed(self, policy: str) -> Float64Array:
        """[seeds] held-out loss minus that of fixed batches of the same seed."""
        return np.array([run.loss - self.runs[BASE][seed].loss for seed, run in self._of(policy)])

    def mean(self, policy: str, figure: str) -> float:
        return float(np.mean([getattr(run, figure) for _, run in self._of(policy)]))

    def _of(self, policy: str) -> list[tuple[int, Run]]:
        return sorted(self.runs[policy].items())

    def as_dict(self) -> dict[str, Any]:
        return {
            "corpus": self.name,
            "policies": {
                policy: {
                    "above_fixed": interval(self.above_fixed(policy)),
                    "cosine": self.cosines[policy],
                    "runs": {str(seed): asdict(run) for seed, run in self._of(policy)},
                }
                for policy in self.runs
            },
        }


def interval(values: Float64Array) -> dict[str, float]:
    """Mean and its standard error."""
    return {
        "mean": float(values.mean()),
        "standard_error": float(values.std(ddof=1) / len(values) ** 0.5),
    }


def tables(result: CorpusResult) -> str:
    """A table of Markdown, with a line above it."""
    rows = []
    for policy, runs in result.runs.items():
        steps = [run.steps for run in runs.values()]
        above = interval(result.above_fixed(policy))
        rows.append(
            [
                policy,
                f"{result.mean(policy, 'loss'):.3f}",
                "" if policy == BASE else f"{above['mean']:+.3f} ± {above['standard_error']:.3f}",
                f"{result.mean(policy, 'composition'):.2f}",
                f"{result.mean(policy, 'variance_of_means'):.1f}",
                f"{result.mean(policy, 'tokens_cv'):.2f}",
                f"{result.cosines[policy]:.3f}",
                f"{result.mean(policy, 'imbalance'):.3f}",
                f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}",
            ]
        )
    return f"{result.name}, {len(result.runs[BASE])} seeds\n\n{markdown(_HEADER, rows)}"
