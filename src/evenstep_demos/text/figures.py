"""Records of all ranks -> the figures of a run. Pure arithmetic on [steps, ranks] arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import InvariantError
from evenstep_demos.text.train import StepRecords


@dataclass(frozen=True, kw_only=True)
class TextRunFigures:
    """One run, or its repeats one after the other. Fractions are fractions, not percent; tokens and
    samples are those of all ranks."""

    steps: int
    samples: int
    tokens: int
    """Real tokens."""
    padded_tokens: int
    seconds: float
    """Seconds of the slowest rank, from asking for the first batch to the end of the last step."""
    tokens_per_second: float
    """Real tokens."""
    padding: float
    """1 - real tokens / padded tokens."""
    imbalance: float
    """Sum over steps of the slowest rank's processor seconds, over the sum of the mean: other
    programs take the processor from one rank or another, which is no imbalance."""
    imbalance_in_tokens: float
    """`imbalance` in padded tokens instead of seconds."""
    samples_per_step: float
    wait: float
    """Fraction of its time that a rank waits for its own loader, mean over ranks. The wait for the
    first batch, for which the loader's processes have to start, is included."""
    first_wait: float
    """Seconds until the first batch, of the slowest rank."""
    processor_share: float
    """Fraction of its compute seconds in which a rank had a processor to itself. Well below 1,
    other programs were running, and seconds mean little."""
    processor_seconds: float
    """Processor seconds of the slowest rank, summed over steps: compute time without waiting for
    a processor."""
    most_padded_tokens: int
    """Padded tokens of the largest group on a rank, which decide the memory needed."""
    held_out_loss: float
    rank_seconds: tuple[float, ...]
    """Compute seconds of each rank, summed over steps."""
    compute_seconds: npt.NDArray[np.float64]
    """[steps, ranks] processor time of the forward and backward pass until the last gradient is
    ready."""

    def as_dict(self) -> dict[str, Any]:
        """All figures as numbers; seconds per step and rank as nested lists."""
        values = dict(self.__dict__)
        values["rank_seconds"] = list(self.rank_seconds)
        values["compute_seconds"] = np.round(self.compute_seconds, 5).tolist()
        return values


def one_after_the_other(repeats: Sequence[Sequence[StepRecords]]) -> list[StepRecords]:
    """The records of each rank, from [repeats][ranks] records."""
    joined = []
    for rank in zip(*repeats):
        lists = {
            f.name: [value for record in rank for value in getattr(record, f.name)]
            for f in fields(StepRecords)
            if f.name != "total"
        }
        joined.append(StepRecords(**lists, total=sum(record.total for record in rank)))
    return joined


def measure(records: Sequence[StepRecords], held_out_loss: float) -> TextRunFigures:
    """Figures of a run from the records of its ranks.

    Raises:
        InvariantError: the ranks made different numbers of steps.
    """
    counts = [len(record.compute) for record in records]
    if len(set(counts)) > 1:
        raise InvariantError(f"the ranks made {counts} steps")
    padded = np.array([record.padded_tokens for record in records], np.int64).T
    compute = np.array([record.compute for record in records], np.float64).T
    cpu = np.array([record.compute_cpu for record in records], np.float64).T
    tokens = sum(sum(record.tokens) for record in records)
    samples = sum(sum(record.samples) for record in records)
    seconds = max(record.total for record in records)
    return TextRunFigures(
        steps=counts[0],
        samples=samples,
        tokens=tokens,
        padded_tokens=int(padded.sum()),
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        padding=float(1 - tokens / padded.sum()),
        imbalance=_imbalance(cpu),
        imbalance_in_tokens=_imbalance(padded),
        samples_per_step=samples / counts[0],
        wait=float(np.mean([sum(record.wait) / record.total for record in records])),
        first_wait=max(record.wait[0] for record in records),
        processor_share=float(cpu.sum() / compute.sum()),
        processor_seconds=float(cpu.max(axis=1).sum()),
        most_padded_tokens=int(padded.max()),
        held_out_loss=held_out_loss,
        rank_seconds=tuple(compute.sum(axis=0).tolist()),
        compute_seconds=cpu,
    )


def _imbalance(costs: npt.NDArray[Any]) -> float:
    """Sum over steps of the largest of [steps, ranks] costs, over the sum of their mean."""
    return float(costs.max(axis=1).sum() / costs.mean(axis=1).sum())
