"""`LightningLoader`: what Lightning's Trainer walks over, and how far it is.

Trainer reads one batch ahead, to recognise the last one, and copies the content of a batch. So each
batch carries its step in a `CarriedStep`, which the callback marks as taken.

The callback loads the loader's state. Trainer's own way would lose it at the end of an epoch, and
where a schedule has asked for the loader before.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from evenstep.batch.step_info import STEP_KEY, StepInfo
from evenstep.errors import ConfigurationError
from evenstep.integrations.handed_steps import check_one_batch
from evenstep.integrations.rank_values import all_parts
from evenstep.loader.dataloader import DataLoader


class CarriedStep:
    """A step on its way to the callback. No dataclass, which Lightning would take apart."""

    def __init__(self, step: StepInfo, samples: int) -> None:
        self.step = step
        self.samples = samples
        """See `evenstep.DataLoader.samples`, up to this step."""
        self.taken = False


class LightningLoader:
    """An iterable without a length: training ends an epoch where the data ends."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._steps: Iterator[tuple[Any, StepInfo]] = iter(())
        self._batch: Any = None  # handed over last
        self._before = 0  # samples before the pass
        # The steps handed over last, each with the state after it. The first has no step.
        self._places: deque[tuple[CarriedStep | None, dict[str, Any]]] = deque(maxlen=3)

    def __iter__(self) -> Iterator[Any]:
        """Does nothing before the first batch is read: Trainer makes iterators to throw away.

        Raises:
            ConfigurationError: a batch is no mapping, so that no step can be put in, or nobody
                takes the steps out.
        """
        if self._read_ahead():
            # Trainer begins again with what it has not trained on.
            self.loader.load_state_dict(self._places[0][1])
        batch = self._first()
        while batch is not None:
            yield batch
            batch = self._next()

    def _first(self) -> Any:
        """The first batch of a pass. If nothing is left of a resumed epoch, of the next."""
        for _ in range(2):
            self._places.clear()
            self._places.append((None, self.loader.state_dict()))
            self._before = self.loader.samples
            self._steps = self.loader.steps()
            if (batch := self._next()) is not None:
                return batch
        return None

    def _next(self) -> Any:
        batch, step = next(self._steps, (None, None))
        if step is None:
            return None
        # The last one may be what Trainer has read ahead.
        before = self._places[-2][0] if len(self._places) > 1 else None
        if before is not None and not before.taken:
            raise ConfigurationError(
                "nobody scales the losses of this loader; write even.fit(trainer, module, "
                "loader), or Trainer(callbacks=[even.StepCallback()])"
            )
        if not isinstance(batch, MutableMapping):
            raise ConfigurationError(
                f"the batch is a {type(batch).__name__}, which cannot carry its step; let "
                "collate_fn return a dict"
            )
        batch[STEP_KEY] = carried = CarriedStep(step, self.loader.samples)
        self._places.append((carried, self.loader.state_dict()))
        self._batch = batch
        return batch

    def _reached(self) -> tuple[CarriedStep | None, dict[str, Any]] | None:
        """The place of the step that was trained on last; None before the first pass."""
        places = [place for place in self._places if place[0] is None or place[0].taken]
        return places[-1] if places else None

    @property
    def samples(self) -> int:
        """Of all ranks, that were trained on: what Trainer has read ahead does not count."""
        reached = self._reached()
        carried = None if reached is None else reached[0]
        if carried is not None:
            return carried.samples
        return self._before if self._read_ahead() else self.loader.samples

    def _read_ahead(self) -> bool:
        """Whether Trainer has read a batch of a pass, and has trained on none."""
        reached = self._reached()
        return reached is not None and reached[0] is None and len(self._places) > 1

    def state(self) -> dict[str, Any]:
        """Where training is, with the parts of all ranks. All ranks call it."""
        reached = self._reached()
        if reached is None:
            return all_parts(self.loader.state_dict())
        carried, state = reached
        if carried is not None and not carried.step.ends_update:
            warnings.warn(
                f"a checkpoint after step {carried.step.step}, in the middle of an update, lacks "
                "the gradients that are not applied yet; save every n steps, or at the end of an "
                "epoch",
                stacklevel=2,
            )
        return all_parts(state)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Goes on where training was, on any number of ranks. A batch that was read ahead becomes
        the first of those that follow.

        Raises:
            MismatchError: the state is of another loader.
        """
        batch = self._batch if self._read_ahead() else None
        self._places.clear()
        self.loader.load_state_dict(state)
        if batch is None:
            return
        first = self._first()
        if first is None:
            raise ConfigurationError("an epoch has no samples; give a dataset that has some")
        batch.clear()
        batch.update(first)
        self._batch = batch


def loader(loader: DataLoader) -> LightningLoader:
    """A loader for ``Trainer.fit``, or for a module's or data module's ``train_dataloader`` to
    return. The Trainer needs a `StepCallback`.

    Its state is in Trainer's checkpoints, for any number of ranks to resume in mid-epoch.

    Raises:
        ConfigurationError: its batches are lists of micro-batches.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigurationError(
            f"a {type(loader).__name__} is no evenstep.DataLoader; Trainer takes it as it is"
        )
    check_one_batch(loader)
    return LightningLoader(loader)
