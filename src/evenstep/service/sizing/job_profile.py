"""`JobProfile`: what the sources of a job cost, as measured, and of which data that was.

`profile` has the sources of a job measured, in processes of their own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from evenstep.data.pickling import pickled
from evenstep.errors import ConfigurationError, LoaderDiedError, MismatchError
from evenstep.files import MeasuredFile
from evenstep.plan.value_checks import check_at_least
from evenstep.service.job.job import Job
from evenstep.service.sizing.source_measuring import Measuring
from evenstep.strategy.loaders import SourceProfile

_NAMED = 5  # sources, in messages
_FILE = MeasuredFile(
    format="evenstep-job-profile",
    name="profile of a job",
    version=1,
    again="measure the job again by `evenstep service profile JOB`",
    by_hand="To plan by other numbers, give `plan_loaders` a JobProfile of your own.",
)


@dataclass(frozen=True, kw_only=True)
class JobProfile:
    """See the module docstring. Made by `profile`."""

    process_bytes: int
    """Memory of a loader or a worker that has opened no source yet."""
    sources: Mapping[str, SourceProfile]
    fingerprints: Mapping[str, Mapping[str, Any]]
    """By name of the source, as `SourceReader.fingerprint`."""

    def of(self, names: Sequence[str]) -> list[SourceProfile]:
        """[names] profiles of these sources.

        Raises:
            MismatchError: one was not measured.
        """
        missing = [name for name in names if name not in self.sources]
        if missing:
            raise MismatchError(
                f"the profile does not have {_named(missing)}; {_FILE.again}, which measures what "
                "is missing"
            )
        return [self.sources[name] for name in names]

    def check(self, now: Mapping[str, Mapping[str, Any]]) -> None:
        """
        Args:
            now: fingerprints of the job's sources.

        Raises:
            MismatchError: sources were not measured, or their data or transform was another; the
                error names them.
        """
        stale = [name for name, found in now.items() if self.fingerprints.get(name) != found]
        if stale:
            raise MismatchError(
                f"{_named(stale)} changed since the profile was made, in data or in transform; "
                f"{_FILE.again}, which measures what has changed"
            )

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file, whole or not at all."""
        _FILE.write(path, self.as_dict())

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> JobProfile:
        """
        Raises:
            ConfigurationError: there is no such file, or it was changed since.
        """
        content = _FILE.read(path)
        try:
            return cls(
                process_bytes=content["process_bytes"],
                sources={name: SourceProfile(**s) for name, s in content["sources"].items()},
                fingerprints=content["fingerprints"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{path} is damaged ({type(error).__name__}: {error}); {_FILE.again}"
            ) from error

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "process_bytes": self.process_bytes,
            "sources": {name: each.as_dict() for name, each in self.sources.items()},
            "fingerprints": {name: dict(each) for name, each in self.fingerprints.items()},
        }


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMED]))
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"source{'' if len(names) == 1 else 's'} {shown}{more}"


_MODULE = "evenstep.service.sizing.measuring_main"
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def profile(
    job: Job,
    *,
    samples: int = 64,
    seconds: float = 5.0,
    known: JobProfile | None = None,
    progress: Callable[[str, SourceProfile | None], None] | None = None,
) -> JobProfile:
    """Measures what the sources of a job cost. Measure where loaders will run, and while nothing
    else keeps the processor busy.

    Args:
        samples: of each source, at most.
        seconds: for each source, about.
        known: an earlier profile: only sources that have changed since are measured.
        progress: called with the name of each source and what was measured of it, None if it has
            not changed.

    Raises:
        ConfigurationError: a source cannot be opened, or hangs.
        SampleError: a sample cannot be read or prepared.
    """
    check_at_least(1, samples=samples)
    if not seconds > 0:
        raise ConfigurationError(f"seconds={seconds!r} must be above 0")
    found: dict[str, SourceProfile] = {}
    fingerprints: dict[str, Mapping[str, Any]] = {}
    earlier = {} if known is None else known.fingerprints
    with _measurements(job, samples, seconds, earlier) as answers:
        process_bytes = next(answers)
        for source, (fingerprint, measured) in zip(job.sources, answers):
            fingerprints[source.name] = fingerprint
            if measured is not None:
                found[source.name] = measured
            elif known is not None:
                found[source.name] = known.sources[source.name]
            if progress is not None:
                progress(source.name, measured)
    return JobProfile(process_bytes=process_bytes, sources=found, fingerprints=fingerprints)


def check_profile(job: Job, known: JobProfile) -> None:
    """
    Raises:
        MismatchError: sources of the job have changed since the profile was made; it names them.
        ConfigurationError: a source cannot be opened.
    """
    with _measurements(job, 0, 0.0, {}) as answers:
        next(answers)
        known.check({source.name: each for source, (each, _) in zip(job.sources, answers)})


@contextmanager
def _measurements(
    job: Job, samples: int, seconds: float, known: Mapping[str, Any]
) -> Iterator[Iterator[Any]]:
    """Answers of `measuring_main`, whose process ends with the context."""
    counted = tuple(map(job.columns.index, job.measures.counted))
    measuring = Measuring(job.measure, counted, job.seed, samples, seconds)
    sent = pickled("what is measured of the job", (tuple(job.sources), measuring))
    paths = [os.path.abspath(path) for path in sys.path]
    process = subprocess.Popen(
        [sys.executable, "-m", _MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(BrokenPipeError):  # `_answers` says why
            pickle.dump((sent, paths, dict(known)), process.stdin)
            process.stdin.flush()
        yield _answers(process)
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
        process.wait()


def _answers(process: subprocess.Popen[bytes]) -> Iterator[Any]:
    assert process.stdout is not None
    while True:
        try:
            answer = pickle.load(process.stdout)
        except EOFError as error:
            raise LoaderDiedError(
                f"the process that measures sources (process {process.pid}) has ended; see what it "
                "has written to standard error"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        yield answer
