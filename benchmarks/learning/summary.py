"""What the runs of a corpus say, as a table: losses against those of fixed batches on the same
seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from benchmarks.learning.experiment import Run
from benchmarks.learning.plans import BASE
from benchmarks.lib.report import Table
from evenstep.arrays import Float64Array

_HEADER = ["policy", "held-out loss", "above fixed", "composition", "cosine", "imbalance", "steps"]


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


def table_of(result: CorpusResult) -> Table:
    rows = []
    for policy, runs in result.runs.items():
        steps = [run.steps for run in runs.values()]
        above = result.above_fixed(policy)
        error = above.std(ddof=1) / len(above) ** 0.5
        rows.append(
            [
                policy,
                f"{result.mean(policy, 'loss'):.3f}",
                "" if policy == BASE else f"{above.mean():+.3f} ± {error:.3f}",
                f"{result.mean(policy, 'composition'):.2f}",
                f"{result.cosines[policy]:.3f}",
                f"{result.mean(policy, 'imbalance'):.3f}",
                f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}",
            ]
        )
    return Table(_HEADER, rows, f"{result.name}, {len(result.runs[BASE])} seeds")
