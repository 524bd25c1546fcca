"""`Resumption`: where a loader resumes that loads a state, once the two are found to fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from evenstep.data.shares import is_undivided
from evenstep.errors import MismatchError, parsing
from evenstep.loader.learning.question import Learned
from evenstep.loader.options import LoaderOptions
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.epochs import Epochs
from evenstep.loader.resume.state import LoaderState
from evenstep.loader.resume.state_schema import LEARNED_SCHEMA
from evenstep.plan.saved_state import REMEDY
from evenstep.plan.value_checks import shorten
from evenstep.protocol.window_size import same_windows

# What may differ between the checkpoint and the loader that loads it.
_FREE = ("world_size", "buffer_size", "accumulate", "update_tokens", "learned", "dealt", "mixture")
_UPDATE = ("accumulate", "update_tokens")
_WAITS = ("'sync': 'update'", "'sync': 'step'")


class Resumption(NamedTuple):
    """Where a loader resumes."""

    progress: EpochProgress
    ranks: tuple[int, int] | None
    """(rank, world size) whose progress it is; None for that of any."""
    chunk_size: int
    """That of the state, where it decides the order of the samples."""
    learned: Learned | None
    """Sizes that the state says; None where they are to be found again."""
    dealt: bool | None
    """`Learned.dealt` of the epoch under way; None where none is."""


def resumption(
    state: Mapping[str, Any],
    options: LoaderOptions,
    epochs: Epochs,
    ranks: tuple[int, int],
    *,
    chunk_size_given: bool,
) -> Resumption:
    """
    Args:
        options, epochs: those of the loader.
        ranks: its rank and world size.
        chunk_size_given: the user chose the chunk size. Otherwise, for an iterable dataset, the
            state's is taken, as it decides the order in which samples come.

    Raises:
        MismatchError: see `DataLoader.load_state_dict`.
    """
    loaded = LoaderState.read(state)
    progress = loaded.progress(*ranks)
    saved = loaded.job.get("iterable")
    if saved is not None and options.iterable and not chunk_size_given:
        options = with_chunk_size(options, saved["chunk_size"])
    learned = _learned(loaded.job, options, ranks[1])
    job = job_of(options, learned, epochs, ranks[1])
    if progress.untouched:
        job.pop("iterable")
        job.pop("too_long")
    _check_job(loaded.job, job)
    buffer_size = options.memory.buffer_size
    same = same_windows(options.policy, loaded.job["buffer_size"], buffer_size)
    readings = {options.measure.labels, progress.start.labels}
    same &= None in readings or len(readings) < 2
    found_again = options.update_tokens is not None and learned is None
    changed = found_again or any(loaded.job.get(name) != job.get(name) for name in _UPDATE)
    repeats = options.faults.repeatable and (learned is None or learned.repeatable)
    if not (same and repeats) or changed:
        progress = progress.with_new_windows()
    if epochs.mixed is not None:
        with parsing("the state of the mixture", remedy=REMEDY, error=MismatchError):
            saved_order, begun = loaded.job["mixture"], not progress.untouched
            epochs.mixed.load_state_dict(progress.epoch, saved_order, begun=begun)
    epochs.check(progress, buffer_size)
    merged = loaded.merged is not None
    dealt = None if progress.untouched else loaded.job.get("dealt", False)
    return Resumption(progress, None if merged else ranks, options.chunk_size, learned, dealt)


def _learned(job: Mapping[str, Any], options: LoaderOptions, ranks: int) -> Learned | None:
    """What a state says of the sizes of updates, if it fits this loader."""
    saved = job.get("learned")
    if saved is None or job.get("update_tokens") != options.update_tokens:
        return None
    learned = Learned.of(
        {name: saved[name] for name in (*LEARNED_SCHEMA, "sizes") if name in saved}
    )
    return learned if learned.ranks == ranks else None


def with_chunk_size(options: LoaderOptions, chunk_size: int) -> LoaderOptions:
    return replace(options, memory=replace(options.memory, chunk_size=chunk_size))


def job_of(
    options: LoaderOptions, learned: Learned | None, epochs: Epochs, world_size: int
) -> dict[str, Any]:
    """How a loader is built, as far as its states depend on it.

    Args:
        learned: what was found of the job; None before its first pass.
    """
    sizes = {} if learned is None or learned.accumulate is None else {"learned": learned.saved()}
    options = options if learned is None else learned.applied_to(options)
    iterable = {"num_workers": options.num_workers, "chunk_size": options.chunk_size}
    return {
        "world_size": world_size,
        "policy": epochs.policy.fingerprint,  # as the user gave it, for any number of ranks
        "buffer_size": options.memory.buffer_size,
        "accumulate": options.accumulate,
        "too_long": options.too_long,
        **({} if options.update_tokens is None else {"update_tokens": options.update_tokens}),
        **sizes,
        "iterable": iterable if options.iterable else None,
        **({"dealt": options.dealt} if learned and is_undivided(options.dataset) else {}),
        **epochs.describe(),
    }


def _check_job(saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    if saved.get("world_size") != now["world_size"]:  # a rank that is alone waits for nobody
        saved, now = ({**each, "policy": each["policy"].replace(*_WAITS)} for each in (saved, now))
    for key in now:
        if key not in _FREE and saved.get(key) != now[key]:
            raise MismatchError(
                f"the state was saved with another {key}: {shorten(saved.get(key))}, and this "
                f"loader has {shorten(now[key])}; build it as before, or begin a new epoch without "
                "loading the state"
            )
