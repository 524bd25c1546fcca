"""`JobProfile`: what the sources of a job cost, as measured.

`profile` has the sources of a job measured, in processes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evenstep.data.pickling import pickled
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.plan.value_checks import check_at_least
from evenstep.service.job.job import Job
from evenstep.service.remote.child_process import ChildProcess
from evenstep.service.sizing.source_measuring import Measuring
from evenstep.strategy.loaders import SourceProfile


@dataclass(frozen=True, kw_only=True)
class JobProfile:
    """See the module docstring. Made by `profile`."""

    process_bytes: int
    """Memory of a loader or a worker that has opened no source yet."""
    sources: Mapping[str, SourceProfile]

    def of(self, names: Sequence[str]) -> list[SourceProfile]:
        """[names] profiles of these sources.

        Raises:
            MismatchError: one was not measured.
        """
        missing = [name for name in names if name not in self.sources]
        if missing:
            raise MismatchError(
                f"the profile does not have source {missing[0]!r}; measure the job again"
            )
        return [self.sources[name] for name in names]


_MODULE = "evenstep.service.sizing.measuring_main"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


_PATIENCE = 120.0  # seconds for a source to be opened and to give its first samples


def profile(job: Job, *, samples: int = 64, seconds: float = 5.0) -> JobProfile:
    """Measures what the sources of a job cost. Measure where loaders will run, and while nothing
    else keeps the processor busy.

    Args:
        samples: of each source, at most.
        seconds: for each source, about.

    Raises:
        ConfigurationError: a source cannot be opened, or hangs.
        SampleError: a sample cannot be read or prepared.
    """
    check_at_least(1, samples=samples)
    if not seconds > 0:
        raise ConfigurationError(f"seconds={seconds!r} must be above 0")
    counted = tuple(map(job.columns.index, job.measures.counted))
    measuring = Measuring(job.measure, counted, job.seed, samples, seconds)
    sent = pickled("what is measured of the job", (tuple(job.sources), measuring))
    limit, source = _PATIENCE + 4 * seconds, "the first source"
    process = ChildProcess(_MODULE, sent, **_ONE_THREAD)
    measured: dict[str, SourceProfile] = {}
    try:
        process_bytes = process.answer(limit)
        for source in job.names:
            measured[source] = process.answer(limit)
    except TimeoutError as error:
        raise ConfigurationError(
            f"source {source!r} could not be measured within {limit:g} s: opening it, reading it "
            "or its transform hangs, or takes that long for one sample"
        ) from error
    except EOFError as error:
        raise ConfigurationError(
            f"the process that measured source {source!r} died; its reader or its transform ends "
            "it, or takes more memory than there is: see what is in standard error"
        ) from error
    finally:
        process.kill()
    return JobProfile(process_bytes=process_bytes, sources=measured)
