"""`LoaderOptions`: the arguments of a `DataLoader`, checked; `Memory`, `Faults` and `SampleCounts`,
which users pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from evenstep.batch.cut import Fitting, media_tokens_of
from evenstep.batch.loss_scale import LOSS_SCALING
from evenstep.batch.measure import Measure
from evenstep.batch.media import MEDIA_FIELDS
from evenstep.batch.prepare import PreparingCollator
from evenstep.data.mixed import Mixture
from evenstep.errors import ConfigurationError
from evenstep.loader.arguments import (
    check_context_parallel,
    check_padded_to,
    check_workers,
    resolve_padded_to,
)
from evenstep.plan.groups import PaddedTo
from evenstep.plan.policy import Policy
from evenstep.plan.too_long import check_too_long
from evenstep.plan.update_size import check_update_tokens
from evenstep.plan.value_checks import (
    AUTO,
    check_at_least,
    check_given,
    check_one_of,
    check_seconds,
    check_type,
)
from evenstep.protocol import EXHAUSTED_MODES
from evenstep.protocol.window_size import LARGE, WindowSize, check_buffer_size


@dataclass(frozen=True, kw_only=True)
class Memory:
    """How many samples and batches a `DataLoader` holds on each rank.

    Raises:
        ConfigurationError: a value is wrong.
    """

    buffer_size: int | str = AUTO
    """Samples in a planning window; up to twice as many are held. "auto" grows the window to the
    size that the policy needs: see `evenstep.protocol.window_size`."""
    buffer_bytes: int = 1 << 30
    """Bytes that these samples may take, estimated from some samples of every window. This limit
    also holds for a fixed `buffer_size`. All ranks use the window that fits on each of them."""
    prefetch: int = 4
    """Finished steps that are kept ready."""
    share: float = 0.9
    """Of the device's memory, or on a CPU this process's, that training may take under
    ``max_tokens="auto"``: see `evenstep.loader.memory_watch`."""
    total_bytes: int | None = None
    """How much memory that is; None asks the device, or the system."""
    longest: int | None = None
    """Tokens of the longest sample that it has room for alone, under ``too_long="alone"``: one
    that is longer still is an error."""
    chunk_size: int | None = None
    """Samples that a worker hands over at a time. None is up to 32, or up to 2 where ``collate_fn``
    prepares the samples. Lower it if samples are huge."""

    def __post_init__(self) -> None:
        check_buffer_size(self.buffer_size)
        names = ("buffer_bytes", "prefetch", "chunk_size", "total_bytes", "longest")
        check_at_least(1, **{name: getattr(self, name) for name in names})
        if not 0 < self.share <= 1:
            raise ConfigurationError(f"share={self.share} of the memory must be above 0, up to 1")
        _to_int(self, "buffer_size", "buffer_bytes", "prefetch", "chunk_size", "longest")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What a `DataLoader` does about bad samples, slow ranks and ranks that run out of samples.

    Raises:
        ConfigurationError: a value is wrong.
    """

    skip_bad_samples: int = 0
    """Samples that each rank may skip in an epoch because the dataset raises for them or returns
    None, they cannot be counted or prepared, or they are too long. The loader logs each one and
    keeps it in `DataLoader.skipped`. One more is an error. An iterable dataset that raises has
    ended, so this is always an error."""
    warn_after: float | None = 20.0
    """Seconds that a rank waits for its next batch before the logger "evenstep" warns which rank it
    waits for and what that rank does. The next warnings follow after twice, four times and so on as
    long. None or 0 logs nothing. All ranks need the same value."""
    peer_timeout: int = 180
    """Seconds, at least 4, that another rank's host has to answer. One that takes a few seconds
    longer is lost, which is an error. A process that is busy or stopped still answers: its system
    does so for it."""
    replay: bool = False
    """Resume an iterable dataset that has no ``state_dict`` by reading the epoch again from its
    beginning and dropping the samples that came before."""
    repeatable: bool = True
    """A sample that is made twice has the same length. False resumes also where it has another, as
    under augmentation by a generator of your own: new batches are formed of what remains, each
    sample comes once, and the log says how many have another length now."""
    exhausted: str = "pad"
    """"pad" or "stop": what ranks do that run out of samples before the others. See
    `evenstep.protocol.RankProtocol`."""

    def __post_init__(self) -> None:
        check_at_least(0, skip_bad_samples=self.skip_bad_samples)
        check_given(peer_timeout=self.peer_timeout)
        check_at_least(4, peer_timeout=self.peer_timeout)
        check_seconds("logs nothing", warn_after=self.warn_after)
        check_one_of(EXHAUSTED_MODES, exhausted=self.exhausted)
        _to_int(self, "skip_bad_samples")


@dataclass(frozen=True, kw_only=True)
class SampleCounts:
    """What counts a sample, where the length alone does not do: functions of a sample, or None for
    the defaults of `evenstep.batch.Measure`."""

    tokens: Callable[[Any], int] | None = None
    """Returns its tokens."""
    supervised: Callable[[Any], Any] | None = None
    """Returns its supervised tokens, which contribute to the loss."""
    patches: Callable[[Any], int | Sequence[int]] | None = None
    """Returns its vision patches, or those of each of its images."""

    @classmethod
    def of(cls, length_fn: Callable[[Any], int] | SampleCounts | None) -> SampleCounts:
        return length_fn if isinstance(length_fn, SampleCounts) else cls(tokens=length_fn)


def _to_int(options: Any, *names: str) -> None:
    """Makes Python's integers of NumPy's, which a state could not hold as JSON."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value != AUTO:
            object.__setattr__(options, name, int(value))


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Options that the trainer process and the batcher share; see `DataLoader`.

    Picklable as far as the dataset and the functions are.

    Raises:
        ConfigurationError: a value is wrong or contradicts another.
    """

    dataset: Any
    policy: Policy
    seed: int
    memory: Memory
    faults: Faults
    accumulate: int
    sizes: tuple[tuple[int, int], ...] = ()
    """What it may be instead: see `RankProtocol`."""
    update_tokens: int | str | None
    loss_scaling: str
    collate_fn: Callable[[list[Any]], Any]
    blank: Any
    """A `Blank` or `BlankRow`; None where there is none and False where none is wanted. Before it
    is known what the job is like: see `resolve_blank`."""
    measure: Measure
    num_workers: int
    prefetch_factor: int | None
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    start_method: str | None
    persistent_workers: bool
    too_long: str = "error"
    dealt: bool = False
    """See `Learned.dealt`."""

    def __post_init__(self) -> None:
        check_at_least(0, seed=self.seed)
        check_at_least(1, prefetch_factor=self.prefetch_factor, accumulate=self.accumulate)
        check_padded_to(self.policy, self.padded_to)
        check_type(Memory, memory=self.memory)
        check_type(Faults, faults=self.faults)
        longest = self.memory.longest
        check_too_long(self.policy, self.too_long, iterable=self.iterable, longest=longest)
        if self.too_long == "split" and not self.faults.repeatable:
            raise ConfigurationError(
                "too_long='split' makes pieces by lengths, and Faults(repeatable=False) says that "
                "lengths change, so a resume cannot tell which pieces remain; use another too_long"
            )
        check_update_tokens(self.update_tokens)
        check_one_of(LOSS_SCALING, loss_scaling=self.loss_scaling)
        check_context_parallel(self.policy, self.loss_scaling)
        check_seconds("waits for ever", timeout=self.timeout)
        check_workers(
            self.num_workers,
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            multiprocessing_context=self.start_method,
        )
        _to_int(self, "seed", "num_workers", "accumulate")

    @property
    def iterable(self) -> bool:
        """Whether the dataset is iterable, not map-style."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def padded_to(self) -> PaddedTo:
        """The multiples that the collate function pads to."""
        return resolve_padded_to(self.policy, self.collate_fn)

    @property
    def source(self) -> Any:
        """The dataset as samples are read from it: see `PreparingCollator.undecoded`."""
        dataset, collate_fn = self.dataset, self.collate_fn
        if not isinstance(collate_fn, PreparingCollator):
            return dataset
        if isinstance(dataset, Mixture):
            return dataset.over(collate_fn.undecoded)
        return collate_fn.undecoded(dataset)

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the datasets of a mixture; none for any other."""
        return self.dataset.names if isinstance(self.dataset, Mixture) else ()

    @property
    def prepare(self) -> Callable[[Any, str], Any] | None:
        """Makes a sample of what the dataset returns, and the name that errors call it, where the
        collate function does that: see `evenstep.PreparingCollator`. It runs in the workers."""
        collate_fn = self.collate_fn
        return collate_fn.prepare_checked if isinstance(collate_fn, PreparingCollator) else None

    @property
    def fitting(self) -> Fitting | None:
        """What becomes of samples that are too long; None where none is."""
        if self.policy.max_length is None:
            return None
        collate_fn, processor = self.collate_fn, None
        if isinstance(collate_fn, PreparingCollator):
            processor = collate_fn.any_processor()
        return Fitting(
            choice=self.too_long,
            limit=self.policy.max_length,
            longest=self.memory.longest,
            multiple=self.padded_to.samples,
            media=getattr(collate_fn, "media_fields", MEDIA_FIELDS),
            media_tokens=media_tokens_of(processor),
        )

    @property
    def chunk_size(self) -> int:
        """Samples that a worker hands over at a time."""
        if self.memory.chunk_size is not None:
            return self.memory.chunk_size
        # Large chunks save messages; several to a window let every worker have one in the making.
        size = WindowSize(self.policy, self.memory.buffer_size, None)
        window = max(size.most, LARGE) if size.grows else size.most
        most = 2 if isinstance(self.collate_fn, PreparingCollator) else 32
        return max(1, min(most, window // max(2 * self.num_workers, 1)))

    @property
    def collate_threads(self) -> int:
        """Groups that are collated at a time: several where that makes their images, which
        releases the GIL."""
        late = isinstance(self.collate_fn, PreparingCollator) and self.collate_fn.late
        return max(1, min(self.num_workers, self.memory.prefetch)) if late else 1

    @property
    def keeps_workers(self) -> bool:
        """Whether one batcher, and its workers, serve all passes."""
        mixed = self.iterable and isinstance(self.dataset, Mixture)  # its workers learn the epoch
        return self.persistent_workers and self.num_workers > 0 and not mixed
