"""A job started with a planned layout: the same batches, with workers and memory as planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from service_world import comparable, in_one_process, job_of, steps_of

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.strategy.loaders import LoaderLayout, PlannedLoader, SourceStripe


def planned(*loaders: tuple[int, dict[str, tuple[int, int, int]]]) -> LoaderLayout:
    """Workers of each loader, and by source its part, the parts and the stripe."""
    made = [
        PlannedLoader(
            shares=tuple(
                SourceStripe(source=name, part=part, parts=parts, stripe=stripe)
                for name, (part, parts, stripe) in shares.items()
            ),
            workers=workers,
            buffer_bytes=10_000 + number,
            memory=0,
            seconds=0.0,
        )
        for number, (workers, shares) in enumerate(loaders)
    ]
    return LoaderLayout(sources=("code", "web", "books"), loaders=tuple(made), step_seconds=1.0)


LAYOUT = planned(
    (0, {"web": (1, 2, 3)}),
    (1, {"code": (0, 1, 64), "books": (0, 1, 64)}),
    (0, {"web": (0, 2, 3)}),
)


def test_batches_are_those_of_any_other_layout(start: Any, tmp_path: Path) -> None:
    job = job_of(tmp_path)
    expected = in_one_process(job, 6)[0]
    with start(job, loaders=LAYOUT) as service:
        assert comparable(steps_of(service.client(0), 6)) == expected
        loaders = service.status()["loaders"]
    assert [set(each["sources"]) for each in loaders] == [{"web"}, {"code", "books"}, {"web"}]


def test_each_loader_is_sent_its_own_workers_and_bytes(tmp_path: Path) -> None:
    job = job_of(tmp_path, workers=5)
    jobs = job.loader_jobs(es.SourceLayout.planned(LAYOUT))
    assert [each.workers for each in jobs] == [0, 1, 0]
    assert [each.buffer_bytes for each in jobs] == [10_000, 10_001, 10_002]
    assert [each.number for each in jobs] == [0, 1, 2]
    assert {each.workers for each in job.loader_jobs(es.SourceLayout.of(job.names, 2))} == {5}


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (replace(LAYOUT, sources=("code", "web")), "'books', which is none"),
        (planned((0, {"web": (0, 1, 64), "code": (0, 1, 64)})), r"\[\] of source 'books'"),
        (
            planned((0, {"web": (0, 2, 4)}), (0, {"web": (1, 2, 5), "code": (0, 1, 1)})),
            r"\[0, 1\] of source 'web'",
        ),
        (
            planned((0, {"code": (0, 1, 4)}), *[(0, {"web": (0, 1, 4)})] * 2),
            r"\[0, 0\] of source 'web'",
        ),
        (planned((0, {}), (0, {"web": (0, 1, 4)})), "loader 0 has the sources"),
    ],
)
def test_a_layout_without_all_parts_of_all_sources_is_refused(tmp_path, layout, words) -> None:
    with pytest.raises(ConfigurationError, match=words):
        es.start(job_of(tmp_path), backend="local", loaders=layout)


def test_a_layout_of_another_job_is_refused(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    with pytest.raises(ConfigurationError, match="other sources than the job"):
        es.start(
            replace(job, sources=[s for s in job.sources if s.name != "web"]),
            backend="local",
            loaders=LAYOUT,
        )
