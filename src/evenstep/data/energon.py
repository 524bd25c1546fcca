"""The methods of a Megatron-Energon ``SavableDataset``, for a dataset that wraps another.

Energon's loaders call them in place of ``state_dict`` and ``load_state_dict``. What concerns the
samples is answered by the wrapped dataset.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Mapping
from typing import Any


class EnergonMethods(abc.ABC):
    """See the module docstring."""

    dataset: Any
    """The wrapped dataset."""

    @classmethod
    def register_with_energon(cls) -> None:
        """Makes it a ``SavableDataset``, if that library is loaded: its wrappers take anything else
        for a list of datasets."""
        energon = sys.modules.get("megatron.energon")
        if energon is not None:
            energon.SavableDataset.register(cls)

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abc.abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    @abc.abstractmethod
    def reset_state_own(self) -> None:
        """Returns to the beginning."""

    @abc.abstractmethod
    def config(self) -> dict[str, Any]:
        """Describes the dataset, without its samples."""

    @property
    def worker_config(self) -> Any:
        return self.dataset.worker_config

    def save_state(self) -> dict[str, Any]:
        return {"__class__": type(self).__name__, **self.state_dict()}

    def restore_state(self, state: Mapping[str, Any] | None) -> None:
        """None is the beginning."""
        if state is None:
            self.reset_state_own()
        else:
            self.load_state_dict(state)

    def reset_state_deep(self) -> None:
        self.reset_state_own()

    def worker_has_samples(self) -> bool:
        return bool(self.dataset.worker_has_samples())

    def len_worker(self, worker_idx: int | None = None) -> int:
        return int(self.dataset.len_worker(worker_idx))

    def len_rank(self) -> int:
        return int(self.dataset.len_rank())

    def can_restore_sample(self) -> bool:
        return bool(self.dataset.can_restore_sample())

    def assert_can_restore(self) -> None:
        self.dataset.assert_can_restore()

    def restore_sample(self, restore_key: Any) -> Any:
        return self.dataset.restore_sample(restore_key)
