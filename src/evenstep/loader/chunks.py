"""What happens in a worker: samples are prepared, measured, and handed over in chunks.

One message for many samples is what keeps up with a loader that collates in its workers. The
dataset is wrapped so that an error names the sample, and otherwise shows through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from evenstep.batch.measure import Measure
from evenstep.errors import SampleError
from evenstep.loader.arena import Packed, Writer
from evenstep.plan.policy import Policy

__all__ = ["Chunk", "ChunkCollate", "IndexedDataset"]


class IndexedDataset(Dataset):  # type: ignore[type-arg]
    """A map-style dataset whose items come with their index, and whose errors name it.

    Everything else is the wrapped dataset's, so that ``worker_init_fn`` finds there what it expects
    in ``get_worker_info().dataset``.
    """

    def __init__(self, dataset: Any) -> None:
        object.__setattr__(self, "_dataset", dataset)

    def __getitems__(self, indices: Sequence[Any]) -> list[tuple[Any, Any]]:
        fetch = getattr(self._dataset, "__getitems__", None)
        if fetch is not None:
            try:
                return list(zip(indices, fetch(indices), strict=True))
            except Exception as error:
                raise _failed(self._culprit(indices), error) from error
        pairs = []
        for index in indices:
            try:
                pairs.append((index, self._dataset[index]))
            except Exception as error:
                raise _failed(f"sample {index!r}", error) from error
        return pairs

    def _culprit(self, indices: Sequence[Any]) -> str:
        """Which of the samples cannot be had, found by asking for them one by one."""
        for index in indices:
            try:
                self._dataset[index]
            except Exception:
                return f"sample {index!r}"
        return f"one of the samples {list(indices)}"

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # not set yet: being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __getstate__(self) -> Any:
        return self._dataset

    def __setstate__(self, state: Any) -> None:
        object.__setattr__(self, "_dataset", state)


def _failed(what: str, error: Exception) -> SampleError:
    return SampleError(
        f"the dataset raised {type(error).__name__} for {what}: {error}; mend the sample or leave "
        "its index out of the sampler"
    )


@dataclass(frozen=True)
class Chunk:
    """Some samples in order, with what planning needs to know of them."""

    columns: npt.NDArray[np.int64]
    """[samples, 3] length, supervised tokens, patches."""
    payload: Packed | list[Any]
    """The samples: in shared memory when they come from a worker process."""


class ChunkCollate:
    """The collate function of the inner loader: list of items -> `Chunk`."""

    def __init__(self, *, measure: Measure, policy: Policy, indexed: bool, packed: bool) -> None:
        self._measure = measure
        self._policy = policy
        self._indexed = indexed
        self._packed = packed
        self._writer: Writer | None = None
        self._seen = 0

    def __call__(self, items: list[Any]) -> Chunk:
        if self._indexed:
            names = [f"sample {index!r}" for index, _ in items]
            samples = [sample for _, sample in items]
        else:
            names = [f"sample number {self._seen + i} of its worker" for i in range(len(items))]
            samples = items
        self._seen += len(items)
        columns = self._measure(samples, names)
        limit = self._policy.max_length
        if limit is not None and columns[:, 0].max() > limit:
            worst = int(np.argmax(columns[:, 0] > limit))
            raise self._policy.explain_too_long(names[worst], int(columns[worst, 0]))
        if not self._packed:
            return Chunk(columns, samples)
        if self._writer is None:  # made in the worker, never before it is forked
            self._writer = Writer()
        return Chunk(columns, self._writer.pack(samples))
