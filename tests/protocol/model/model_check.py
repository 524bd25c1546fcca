"""A job and all its resumes: after each step, on the same ranks and on others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from model_events import FAULTS
from model_explorer import Explorer, Found
from model_job import Job
from model_notes import Notes

from evenstep.errors import EvenstepError
from evenstep.loader.resume.epoch_cursor import EpochStart
from evenstep.plan import FixedBatch


def check(
    job: Job,
    *,
    depth: int = 1,
    faults: Sequence[str] = FAULTS,
    later_faults: Sequence[str] = FAULTS,
) -> None:
    """Explores a job, and what can be resumed from each of its checkpoints.

    Args:
        depth: changes of the number of ranks or of the windows, one after the other.
        faults: what may befall the ranks until the first resume.
        later_faults: what may befall them after it.

    Raises:
        Found: an invariant does not hold.
    """
    due = job.shares()

    def follow(
        job: Job,
        starts: list[EpochStart],
        trained: Counter[int],
        depth: int,
        may: Sequence[str] = later_faults,
    ) -> None:
        notes, first = Notes(), starts[0].progress.step
        Explorer(job, starts, notes, faults=may).run()
        end = notes.count[""]
        _check_trained(job, due, notes, trained)
        _check_end(job, starts, notes)
        _check_updates(job, notes, first)
        for step in range(first, end):
            states = [notes.states[rank, step] for rank in range(job.ranks)]
            try:
                # The same steps and checkpoints follow: so this holds for further resumes, too.
                same = job.resumed(states)
                changed = list(_changed(job, states)) if depth else []
            except EvenstepError as error:
                raise Found(job.name, f"no resume after step {step}: {error}", []) from error
            Explorer(job, same, notes, faults=later_faults).run()
            for other, others in changed:
                follow(other, others, trained + _trained(notes, step + 1), depth - 1)

    follow(job, job.starts(), Counter(), depth, faults)


def _changed(job: Job, states: list[str]) -> Iterator[tuple[Job, list[EpochStart]]]:
    """The job with windows of another size, and on other numbers of ranks."""
    if job.buffer_size != "auto":
        yield job.rewindowed(states, int(job.buffer_size) + 1)
    if job.orders is None:
        for ranks in {1, 2, 3} - {job.ranks}:
            yield job.resharded(states, ranks)


def _trained(notes: Notes, steps: int) -> Counter[int]:
    return Counter(
        index
        for (_, step), groups in notes.own.items()
        if step < steps
        for group in groups
        for index in group
    )


def _check_trained(job: Job, due: Counter[int], notes: Notes, before: Counter[int]) -> None:
    """Every sample once, together with those before a resume."""
    trained = before + _trained(notes, notes.count[""])
    if too_often := trained - due:
        raise Found(job.name, f"samples are trained on too often: {dict(too_often)}", [])
    missing = set(due) - trained.keys() if before else due - trained
    if missing and job.exhausted == "pad" and not _drops(job):
        raise Found(job.name, f"samples are not trained on: {sorted(missing)}", [])


def _check_end(job: Job, starts: Sequence[EpochStart], notes: Notes) -> None:
    """Under exhausted="stop" an epoch goes on until some rank has trained on all it has."""
    if job.exhausted == "pad" or starts[0].progress.dealt or _drops(job):
        return
    for start in starts:
        steps = range(start.progress.step, notes.count[""])
        trained = sum(len(group) for step in steps for group in notes.own[start.rank, step])
        if trained == sum(index not in job.bad for _, index in start.indices() or ()):
            return
    raise Found(job.name, "the epoch stops, though all ranks have samples", [])


def _drops(job: Job) -> bool:
    return isinstance(job.policy, FixedBatch) and job.policy.drop_last


def _check_updates(job: Job, notes: Notes, first: int) -> None:
    """All steps of an update have the totals of the update, and only its last one ends it."""
    end = notes.count[""]
    for step in range(first, end):
        *_, totals, ends_update = notes.common[step]
        begin = step - step % job.accumulate
        update = range(max(begin, first), min(begin + job.accumulate, end))
        if any(notes.common[other][-2] != totals for other in update):
            raise Found(job.name, f"step {step} has other totals than its update", [])
        counted = sum(sum(notes.common[other][0][0]) for other in update)
        if begin >= first and totals.samples != counted:
            raise Found(job.name, f"step {step} counts {totals.samples} samples of {counted}", [])
        if ends_update != (step == update[-1]):
            raise Found(job.name, f"step {step} ends an update: {ends_update}", [])
