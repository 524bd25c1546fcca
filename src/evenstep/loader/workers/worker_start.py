"""`WorkerStart`: what a worker does before it prepares samples."""

from __future__ import annotations

from dataclasses import dataclass

from torch.utils.data import get_worker_info

from evenstep.processes import EndWithParent


@dataclass(frozen=True)
class WorkerStart(EndWithParent):
    """A ``worker_init_fn`` that ends the worker with its parent, and lets the user's code find its
    own dataset in ``get_worker_info()``."""

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        # torch's class refuses to be changed, and has the dataset that wraps the user's.
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[union-attr]
        super().__call__(worker)
