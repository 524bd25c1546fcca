"""All loaders as the planner sees them: the answer about many sources is that about each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import failing, job_of, sources

import evenstep.service as es
from evenstep.errors import SampleError
from evenstep.mixture.sample_table import SampleTable
from evenstep.service.messages import LocalHandle


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
