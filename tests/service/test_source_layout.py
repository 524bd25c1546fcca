"""Which loader has which samples of a plan, and what it needs for them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import comparable, failing, in_one_process, job_of, sources, steps_of

import evenstep.service as es
from evenstep.errors import ConfigurationError, SampleError
from evenstep.mixture.sample_table import SampleTable
from evenstep.service.messages import LocalHandle
from evenstep.strategy.loaders import LoaderLayout, PlannedLoader, SourceStripe


@given(names=st.integers(1, 6), loaders=st.integers(1, 12), stripe=st.integers(1, 9))
def test_every_position_has_one_owner(names: int, loaders: int, stripe: int) -> None:
    given = [f"source {number}" for number in range(names)]
    layout = es.SourceLayout.of(given, loaders, stripe=stripe)
    positions = np.arange(40)
    for number, name in enumerate(given):
        owners = layout.owners(np.full(40, number), positions)
        for loader, shares in enumerate(layout.shares):
            mine = [s for s in shares if s.source == name]
            expected = mine[0].owns(positions) if mine else np.zeros(40, bool)
            assert ((owners == loader) == expected).all()
            for share in mine:
                for position in range(30):
                    following = next(p for p in itertools.count(position) if share.owns(p))
                    assert share.next_owned(position) == following
    counts = [len(shares) for shares in layout.shares]
    assert max(counts) - min(counts) <= 1


# Planned layouts


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
    (0, {"web": (1, 2, 3)}), (1, {"code": (0, 1, 64), "books": (0, 1, 64)}), (0, {"web": (0, 2, 3)})
)


def test_scaled_layouts_give_each_sample_to_one_loader() -> None:
    """Also where a source is shared by loaders of which one alone would get more."""
    for counts, total in (((1, 1, 1), 3), ((3, 1, 2), 7), ((1, 2, 1), 4)):
        made = es.SourceLayout.scaled(LAYOUT, counts, (0, 1, 0))
        assert len(made.shares) == len(made.workers) == total
        for name in LAYOUT.sources:
            positions = np.arange(500)
            owned = [share.owns(positions) for _, share in made.of_source[name]]
            assert (np.sum(owned, axis=0) == 1).all()
    assert es.SourceLayout.scaled(LAYOUT, (1, 1, 1), (0, 1, 0)) == es.SourceLayout.planned(LAYOUT)


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


# All loaders as the planner sees them


def pool_of(job: es.Job, count: int) -> es.LoaderPool:
    layout = es.SourceLayout.of(job.names, count, stripe=4)
    return es.LoaderPool(layout, handles_of(job, layout), columns=job.columns)


def handles_of(job: es.Job, layout: es.SourceLayout) -> list[LocalHandle]:
    loaders = [es.SourceLoader(job.for_loader(each, n)) for n, each in enumerate(layout.shares)]
    return [LocalHandle(loader) for loader in loaders]


def rows_of(table: SampleTable) -> list[tuple[int, ...]]:
    columns = [table.source, table.position, table.shard, table.index, *table.lengths.values()]
    return list(zip(*(column.tolist() for column in columns)))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    return job_of(tmp_path_factory.mktemp("loaders"), stop="all_exhausted")


@settings(max_examples=20)
@given(data=st.data(), count=st.integers(1, 5))
def test_many_sources_at_once_are_described_as_one_by_one(
    job: es.Job, data: st.DataObject, count: int
) -> None:
    many, one = pool_of(job, count), pool_of(job, count)
    for _ in range(data.draw(st.integers(1, 4))):
        numbers = sorted(data.draw(st.sets(st.integers(0, 2), min_size=1)))
        asked = [(n, data.draw(st.integers(0, 70)), data.draw(st.integers(0, 30))) for n in numbers]
        table = many.ahead_of_many(*np.array(asked, np.int64).T)
        assert rows_of(table) == [row for each in asked for row in rows_of(one.ahead(*each))]
        assert table.sources == job.names
        if data.draw(st.booleans()):
            many.forget_drawn()


def test_what_one_of_two_loaders_knows_of_a_source_is_not_known_of_it(job: es.Job) -> None:
    first, *others = job.names
    halves = [es.SourceStripe(source=first, part=part, parts=2, stripe=4) for part in (0, 1)]
    whole = [es.SourceStripe(source=name) for name in others]
    layout = es.SourceLayout(job.names, ((halves[0],), (halves[1], *whole)))
    handles = handles_of(job, layout)
    before, pool = (es.LoaderPool(layout, handles, columns=job.columns) for _ in range(2))
    before.ahead(0, 0, 30)  # the loaders have that much of the source
    pool.ahead(0, 0, 12)
    pool.forget_drawn()
    pool.ahead(1, 0, 1)  # asks one of the two loaders
    pool.forget_drawn()
    assert rows_of(pool.ahead(0, 0, 30)) == rows_of(before.ahead(0, 0, 30))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_of_several_that_fail_the_first_source_is_reported(tmp_path: Path, count: int) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=failing))
    loaders = pool_of(job, count)
    many = np.full(2, 1000)
    with pytest.raises(SampleError, match=r"sample web\[") as together:
        loaders.ahead_of_many(np.array([1, 2]), many * 0, many)
    with pytest.raises(SampleError) as alone:
        loaders.ahead(1, 0, 1000)
    assert str(together.value) == str(alone.value)
    # Samples before the failure can be drawn.
    assert len(loaders.ahead_of_many(np.array([1, 2]), many * 0, many * 0 + 2)) == 4
