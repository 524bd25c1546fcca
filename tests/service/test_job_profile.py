"""What sources cost is measured in real processes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_world import comparable, in_one_process, job_of, sources, steps_of, with_prompt

import evenstep.service as es
from evenstep.errors import ConfigurationError, MismatchError, SampleError
from evenstep.mixture import FeedbackSchedule, Staged, WarmUp
from evenstep.strategy.loaders import ScalingLimits, SourceProfile

SLOW, LARGE = 0.02, 64 << 20
_kept: list[Any] = []


def slow(row: Any) -> Any:
    time.sleep(SLOW)
    return with_prompt(row)


def large(row: Any) -> Any:
    if not _kept:
        _kept.append(np.ones(LARGE // 8))
    return with_prompt(row)


def deadly(row: Any) -> Any:
    os._exit(3)


def raising(row: Any) -> Any:
    raise ValueError("a bad row")


def test_a_job_starts_without_saying_how_many_loaders_it_needs(tmp_path: Path) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path)[:1])
    expected = in_one_process(job, 3)[0]
    with es.start(job, backend="local", loaders="auto") as service:
        assert comparable(steps_of(service.client(0), 3)) == expected
    with pytest.raises(ConfigurationError, match="'many' must be a number"):
        es.start(job, backend="local", loaders="many")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("transform", "error", "said"),
    [
        (deadly, ConfigurationError, "measured source 'code' died"),
        pytest.param(
            raising, SampleError, r"raised ValueError for sample code\[", marks=pytest.mark.soak
        ),
    ],
)
def test_what_cannot_be_measured_is_named(
    tmp_path: Path, transform: Any, error: type[Exception], said: str
) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=transform)[:1])
    with pytest.raises(error, match=said):
        es.profile(job, samples=2)


@pytest.mark.slow
def test_time_and_memory_are_measured(tmp_path: Path) -> None:
    transforms = {"web": slow, "books": large}
    made = [replace(s, transform=transforms.get(s.name, s.transform)) for s in sources(tmp_path)]
    job = job_of(tmp_path, sources=made)
    found = es.profile(job, samples=8, seconds=0.5)
    web, books, code = (found.sources[name] for name in ("web", "books", "code"))
    assert web.prepare_seconds >= SLOW
    assert web.prepare_high >= SLOW
    assert code.prepare_seconds < SLOW
    assert LARGE <= books.transform_bytes < 2 * LARGE
    assert max(web.transform_bytes, code.transform_bytes) < LARGE / 4
    assert found.process_bytes > 10 << 20
    assert max(each.file_bytes for each in found.sources.values()) < 8 << 20
    assert all(each.samples == 8 and each.tokens > 1 for each in found.sources.values())


def profile_of(job: es.Job, **seconds: float) -> es.JobProfile:
    """
    Args:
        seconds: what a sample of a source takes; next to nothing if it is not given.
    """
    made = {
        name: SourceProfile(
            source=name,
            samples=1,
            read_seconds=1e-5,
            prepare_seconds=seconds.get(name, 1e-4),
            file_bytes=1 << 20,
            tokens=15.0,
        )
        for name in job.names
    }
    return es.JobProfile(process_bytes=100 << 20, sources=made)


def test_workers_follow_the_weights_of_steps_to_come(tmp_path: Path) -> None:
    job = job_of(tmp_path, samples_per_step=100)
    profile = profile_of(job, code=0.001, web=0.1, books=0.001)
    limits: dict[str, Any] = {"step_seconds": 1.0, "memory": 8 << 30, "cores": 64}

    def workers(schedule: Any) -> int:
        layout = es.plan_loaders(job, profile, schedule=schedule, **limits)
        assert not layout.shortages
        return layout.workers

    assert workers({"code": 1.0}) == 0
    assert workers({"code": 0.5, "web": 0.5}) == 7  # 5 s of work, of which each takes 0.8
    later = WarmUp(start={"code": 1.0}, end={"code": 0.5, "web": 0.5}, steps=10, begin=50_000)
    assert workers(later) == 7
    with pytest.raises(MismatchError, match="does not have source 'books'"):
        es.plan_loaders(
            job, replace(profile, sources={n: profile.sources[n] for n in ("code", "web")})
        )


def test_without_a_step_time_all_cores_are_used(tmp_path: Path) -> None:
    job = job_of(tmp_path, samples_per_step=100)
    profile = profile_of(job, code=0.01, web=0.01, books=0.01)
    layout = es.plan_loaders(job, profile, cores=4, memory=8 << 30)
    assert not layout.shortages
    assert 2.5 < layout.cores <= 4.0001
    assert layout.step_seconds < 100 * 0.01 / 0.8 / 4 * 1.6


def test_what_loaders_cannot_keep_up_with_is_named(tmp_path: Path) -> None:
    schedule = Staged({0: {"code": 1}, 20: {"code": 0.5, "web": 0.5}})
    job = job_of(tmp_path, mesh=es.Mesh(DP=1), samples_per_step=8, schedule=schedule)
    limits = ScalingLimits(most_loaders=2, lead=4, hold=2)
    profile = profile_of(job, web=0.03)
    scaling = es.LoaderScaling(
        job, profile, step_seconds=0.05, memory=1 << 30, workers=0, limits=limits
    )
    assert scaling.wanted(15, {}).short == ()
    wanted = scaling.wanted(17, {})
    assert "web" in wanted.short
    assert len(wanted.layout.of_source["web"]) == 2


def test_loaders_follow_weights_that_follow_the_training(tmp_path: Path) -> None:
    """Up at once, and down once less was enough for as many looks as `hold`."""
    usual, costly = {"code": 0.9, "books": 0.1}, {"code": 0.4, "books": 0.6}
    schedule = FeedbackSchedule(initial=usual, function=lambda last, signals: last)
    job = job_of(tmp_path, mesh=es.Mesh(DP=1), samples_per_step=8, schedule=schedule)
    limits = ScalingLimits(most_loaders=4, hold=2)
    needs: dict[str, Any] = {"step_seconds": 0.1, "memory": 1 << 30, "workers": 0}
    scaling = es.LoaderScaling(job, profile_of(job, books=0.03), limits=limits, **needs)
    looks = [{}, usual, costly, usual, usual, usual, usual]
    wanted = [scaling.wanted(step, weights) for step, weights in enumerate(looks)]
    assert [len(each.layout.shares) for each in wanted] == [1, 1, 2, 2, 2, 1, 1]
    assert not any(each.short for each in wanted)
