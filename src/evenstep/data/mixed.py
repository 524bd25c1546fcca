"""`Mixture`: several datasets as one, whose samples come in shares that a schedule gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from evenstep.arrays import Int64Array
from evenstep.data.mixed_pass import MixedPass, SourceReading
from evenstep.data.resumable import ResumableIterable, dataset_fingerprint, is_map_style
from evenstep.errors import ConfigurationError
from evenstep.mixture import FeedbackSchedule, LengthCurriculum, Mixer, Past, Schedule
from evenstep.mixture.mixture_options import ALL_REPEATED, REPEAT
from evenstep.mixture.schedules import Weights, check_names, in_order
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least, check_lengths


class Mixture(Dataset[Any]):
    """A dataset for `evenstep.DataLoader`, which draws its samples in the mixture's order.

    Draws are those of `evenstep.mixture`: a function of seed, epoch, number of the draw and
    schedule, so the same on all ranks and for any number of workers. An epoch is

    - with ``stop="repeat"``, the next `samples_per_epoch` draws: each dataset continues where the
      epoch before left it, and is shuffled again for each pass over it;
    - with another rule, all draws until the rule ends the mixture, or `samples_per_epoch` of them:
      each dataset begins again.

    Steps of the schedule count on from epoch to epoch; the last one of an epoch may be shorter.

    Map-style datasets are numbered through: the index of a sample is its own plus the sizes of the
    datasets before it. They are shuffled where the loader has ``shuffle=True``.

    Of iterable datasets, which yield a rank's (and worker's) share each, every worker mixes its
    own, with draws of its own, and each epoch begins all of them. It calls ``set_epoch(epoch +
    number of the pass)`` where they have that. Without `samples_per_epoch` the rule ends each
    worker's mixture by itself, and steps of the schedule count from 0 in each epoch.
    """

    def __new__(cls, datasets: Any = (), *arguments: Any, **options: Any) -> Mixture:
        given = datasets.values() if isinstance(datasets, Mapping) else ()
        streamed = cls is Mixture and not all(map(is_map_style, given))
        made: Mixture = super().__new__(MixedStream if streamed else cls)
        return made

    def __init__(
        self,
        datasets: Mapping[str, Any],
        weights: Schedule | Weights | Any,
        *,
        by: str = "samples",
        stop: str = REPEAT,
        passes: Mapping[str, int] | None = None,
        samples_per_epoch: int | None = None,
        samples_per_step: int = 1024,
        curriculum: LengthCurriculum | None = None,
        lengths: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """
        Args:
            datasets: by name; all map-style or all iterable.
            weights: by name, or a schedule of `evenstep.mixture`.
            by: "samples" or "tokens", in which weights are shares. Tokens of map-style datasets
                must be known: see `lengths`. Those of iterable ones are counted as they are read.
            stop: what happens where a dataset ends: see `evenstep.mixture.mixture_options`.
            passes: by name, how often a dataset is read until it has ended; once by default.
            samples_per_epoch: draws of an epoch, on all ranks together. None is as many samples as
                map-style datasets have with ``stop="repeat"``, else where the rule ends.
            samples_per_step: draws of a step of the schedule, on all ranks together.
            curriculum: by step, the longest sample that is drawn. It needs `lengths`.
            lengths: by name, [samples] integers: tokens of each sample of a map-style dataset.

        Raises:
            ConfigurationError: an argument is wrong, or contradicts another or the datasets.
        """
        if not isinstance(datasets, Mapping) or not datasets:
            raise ConfigurationError(
                f"datasets={datasets!r:.80} must be a mapping from names to datasets, such as "
                '{"code": code, "chat": chat}'
            )
        self.datasets = dict(datasets)
        self.names = tuple(datasets)
        self.by, self.stop, self.curriculum = by, stop, curriculum
        self.passes = dict(passes or {})
        check_names(self.passes, self.names, "passes")
        self.samples_per_step, self.samples_per_epoch = samples_per_step, samples_per_epoch
        self.weights, self.signals = weights, dict[str, Any]()
        check_at_least(1, samples_per_epoch=samples_per_epoch)
        check_at_least(1, **{f"passes of {name!r}": each for name, each in self.passes.items()})
        if self.passes and self.stop == REPEAT:
            raise ConfigurationError(
                f"passes={self.passes} says when datasets have ended, and stop='repeat' reads them "
                "without end; choose another rule, or leave passes out"
            )
        self._describe(lengths)
        self.schedule = self.mixer(0).options.schedule
        """The weights as a schedule, checked."""

    def _describe(self, lengths: Mapping[str, npt.ArrayLike] | None) -> None:
        """Takes sizes and lengths, and refuses what contradicts them."""
        self.sizes = {name: len(dataset) for name, dataset in self.datasets.items()}
        """Samples of each."""
        self.ends = {name: self.passes.get(name, 1) * size for name, size in self.sizes.items()}
        """Samples of each until it has ended."""
        self._begins = np.append(0, np.cumsum(list(self.sizes.values())))
        self.lengths = {name: check_lengths(each) for name, each in (lengths or {}).items()}
        known = {name: len(each) for name, each in self.lengths.items()}
        if known and known != self.sizes:
            raise ConfigurationError(
                f"lengths of {known} samples are given, and the datasets have {self.sizes}; count "
                "the tokens of each sample again"
            )
        if not known and (self.by == "tokens" or self.curriculum is not None):
            raise ConfigurationError(
                f"by={self.by!r} and curriculum={self.curriculum} need the tokens of each sample "
                "before it is drawn; count them once, and pass lengths={name: array of integers}"
            )
        if self.samples_per_epoch is None and self.stop == REPEAT:
            self.samples_per_epoch = len(self)

    def mixer(self, seed: int) -> Mixer:
        """A new `Mixer` of these sources."""
        return Mixer(
            self.names,
            self.weights,
            samples_per_step=self.samples_per_step,
            by=self.by,
            stop=self.stop,
            curriculum=self.curriculum,
            sizes=self.ends,
            seed=seed,
        )

    def report(self, **signals: Any) -> None:
        """Takes what the training measured, for a `FeedbackSchedule`: ``loss_by_source={"code":
        2.1}``. All ranks report the same. It counts from the next epoch on."""
        mixer = self.mixer(0)
        mixer.report(**signals)
        self.signals |= mixer.state.signals

    def over(self, change: Callable[[Any], Any]) -> Mixture:
        """The same mixture of changed datasets, each of as many samples."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.datasets = {name: change(dataset) for name, dataset in self.datasets.items()}
        return other

    @property
    def fingerprint(self) -> str:
        """Those of the datasets; for checkpoints."""
        iterable = isinstance(self, IterableDataset)
        each = {n: dataset_fingerprint(d, iterable=iterable) for n, d in self.datasets.items()}
        return f"{each} by {self.by} until {self.stop}"

    # As a map-style dataset

    def __len__(self) -> int:
        """Samples of all datasets together, which indices count. An epoch has
        `evenstep.DataLoader.epoch_samples`."""
        return int(self._begins[-1])

    def __getitem__(self, index: int) -> Any:
        source = self._source(index)
        return self.datasets[self.names[source]][index - int(self._begins[source])]

    def source_of(self, index: Any) -> str:
        """The name of the dataset that an index belongs to."""
        return self.names[self._source(index)]

    def _source(self, index: int) -> int:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} of {len(self):,} samples")
        return int(self._begins.searchsorted(index, side="right")) - 1

    def index_of(self, source: npt.NDArray[np.integer[Any]], index: Int64Array) -> Int64Array:
        """[n] indices of samples, by number of their dataset and index in it."""
        found: Int64Array = self._begins[source] + index
        return found

    def typical(self, count: int, seed: int) -> Int64Array:
        """[count or fewer] indices of random samples, different ones, in the shares of the first
        step; those by tokens are taken as by samples."""
        rng = np.random.default_rng(seed)
        weights = in_order(self.schedule.weights(0, Past()), self.names)
        wanted = rng.multinomial(count, weights)
        parts = [
            begin + rng.choice(size, min(each, size), replace=False)
            for begin, size, each in zip(self._begins.tolist(), self.sizes.values(), wanted)
        ]
        return rng.permutation(np.concatenate(parts))


class MixedStream(Mixture, IterableDataset):  # type: ignore[type-arg]
    """A `Mixture` of iterable datasets."""

    def _describe(self, lengths: Any) -> None:
        rows = [name for name, dataset in self.datasets.items() if is_map_style(dataset)]
        if rows:
            raise ConfigurationError(
                f"{', '.join(map(repr, rows))} of datasets are map-style and the others iterable: "
                "the former are dealt to ranks by index, the latter yield a rank's share; make "
                "them all map-style, or yield a rank's share of each from an iterable dataset"
            )
        if self.stop == ALL_REPEATED or (self.stop == REPEAT and not self.samples_per_epoch):
            raise ConfigurationError(
                f"stop={self.stop!r} needs the sizes of iterable datasets, which nobody knows; "
                "pass stop='repeat' and samples_per_epoch=, or choose first_exhausted or "
                "all_exhausted"
            )
        if lengths or self.curriculum or isinstance(self.weights, FeedbackSchedule):
            raise ConfigurationError(
                "lengths=, curriculum= and FeedbackSchedule are for map-style datasets: what "
                "iterable ones yield is mixed in the workers; leave them out"
            )
        self.ends: dict[str, int] = {}
        self.begin(epoch=0, seed=0, rank=0, ranks=1)
        self._readers = {name: ResumableIterable(each) for name, each in self.datasets.items()}

    def over(self, change: Callable[[Any], Any]) -> Mixture:
        other = super().over(change)
        other._describe(None)
        return other

    def begin(self, *, epoch: int, seed: int, rank: int, ranks: int) -> None:
        """Says which pass the next one is, before workers are started."""
        self._pass = {"epoch": epoch, "seed": seed, "rank": rank, "ranks": ranks}

    def __iter__(self) -> MixedPass:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        epoch, seed, rank, ranks = self._pass.values()
        stream, streams = rank * workers + worker, ranks * workers
        key = generator(seed, epoch, stream, RandomStream.MIXED_STREAM)
        per_step = -(-self.samples_per_step // streams)
        mixer = self.mixer(int(key.integers(1 << 63))).with_samples(per_step)
        samples = None
        if self.samples_per_epoch is not None:
            samples = len(range(stream, self.samples_per_epoch, streams))
            mixer.load_state_dict({**mixer.state_dict(), "step": epoch * -(-samples // per_step)})
        endless = self.stop == REPEAT
        sources = [
            SourceReading(
                name,
                reader,
                epoch=epoch,
                passes=None if endless else self.passes.get(name, 1),
                counts_tokens=self.by == "tokens",
            )
            for name, reader in self._readers.items()
        ]
        return MixedPass(mixer, sources, samples)

    def __len__(self) -> int:
        raise TypeError("a rank's share of iterable datasets has no known size")

    def source_of(self, index: Any) -> str:
        return str(index).rpartition(" ")[0]
