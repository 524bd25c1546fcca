"""Which loader has which samples of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from service_world import job_of

import evenstep.service as es
from evenstep.service.job.source_layout import loader_tasks
from evenstep.strategy import LoaderTask
from evenstep.strategy.loaders import LoaderLayout, PlannedLoader, SourceStripe


def test_scaled_layouts_give_each_sample_to_one_loader() -> None:
    """Also where a source is shared by loaders of which one alone would get more."""
    planned = [
        PlannedLoader(shares=shares, workers=0, buffer_bytes=9, memory=1, seconds=1.0)
        for shares in (
            (SourceStripe(source="a"), SourceStripe(source="b", part=0, parts=2, stripe=8)),
            (SourceStripe(source="b", part=1, parts=2, stripe=8),),
            (SourceStripe(source="c"),),
        )
    ]
    layout = LoaderLayout(sources=("a", "b", "c"), loaders=tuple(planned), step_seconds=1.0)
    for counts, total in (((1, 1, 1), 3), ((3, 1, 2), 8), ((1, 2, 1), 5)):
        made = es.SourceLayout.scaled(layout, counts, (1, 1, 0))
        assert len(made.shares) == len(made.workers) == total
        assert made.workers[-1] == 0
        for name in layout.sources:
            positions = np.arange(500)
            owned = [share.owns(positions) for _, share in made.of_source[name]]
            assert (np.sum(owned, axis=0) == 1).all()
    assert es.SourceLayout.scaled(layout, (1, 1, 1), (0, 0, 0)) == es.SourceLayout.planned(layout)


@pytest.mark.parametrize("loaders", [1, 2, 3, 8])
def test_the_work_of_all_loaders_is_that_of_each(tmp_path: Path, loaders: int) -> None:
    layout = es.SourceLayout.of(("code", "web", "books"), loaders, stripe=3)
    with es.start(job_of(tmp_path), backend="local") as service:
        plan = service.plan(2)
    # Carried samples are not the first of their source in every plan.
    turned = replace(plan, subplans={"again": plan}, samples=plan.samples[::-1])
    for each in (plan, turned):
        together = loader_tasks(each, layout)
        assert sorted(np.concatenate([work.rows for work in together])) == list(range(len(each)))
        for shares, work in zip(layout.shares, together):
            by_name = {share.source: share for share in shares}
            own = [name in by_name for name in each.samples.sources]
            order = np.lexsort((each.samples.position, each.samples.source))
            whole = LoaderTask.of(each, order[np.array(own)[each.samples.source[order]]])
            kept = [
                row
                for row in range(len(whole.rows))
                if by_name[whole.samples.identity(row).source].owns(whole.samples.position[row])
            ]
            assert work.step == whole.step
            assert work.samples == whole.samples[kept]
            assert work.rows.tolist() == whole.rows[kept].tolist()
            assert work.bucket.tolist() == whole.bucket[kept].tolist()
            for name, bucket in whole.subplans.items():
                assert work.subplans[name].tolist() == bucket[kept].tolist()


def test_the_work_of_some_buckets_is_that_of_their_samples(tmp_path: Path) -> None:
    with es.start(job_of(tmp_path), backend="local") as service:
        plan = service.plan(2)
    turned = replace(plan, assignment=replace(plan.assignment, bucket=1 - plan.assignment.bucket))
    plan = replace(plan, subplans={"turned": turned})
    layout = es.SourceLayout.of(("code", "web", "books"), 2)
    whole = loader_tasks(plan, layout)
    for name, bucket in ((None, 1), ("turned", 0)):
        for part, of in zip(loader_tasks(plan, layout, [(name, bucket)]), whole):
            kept = [row for row, number in enumerate(of.bucket.tolist()) if number == 1]
            assert part.rows.tolist() == of.rows[kept].tolist()
            assert part.bucket.tolist() == of.bucket[kept].tolist()
    both = loader_tasks(plan, layout, [(None, 1), ("turned", 1)])
    assert [part.rows.tolist() for part in both] == [
        of.rows[of.bucket >= 0].tolist() for of in whole
    ]
