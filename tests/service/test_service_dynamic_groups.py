"""Dynamic context parallelism from the service: each rank fetches its own shard alone, with its
group and an exact loss scale, from the plan of the planner; in one process and in several."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_world import Batches, comparable, job_of, sources, squares, steps_of

import evenstep.service as es
from evenstep.batch.pack import PackCollator
from evenstep.context_parallel import unshard
from evenstep.errors import CollateError, ConfigurationError, SampleError
from evenstep.plan.dynamic_context import DynamicContext, Exchange, plan_dynamic_context
from evenstep.plan.packing import DocumentCost
from evenstep.strategy import LoadingPlan, from_json, to_json, trace

COST, FREE, MOST = DocumentCost(linear=100), Exchange(within=0, between=0), 60


def dynamic(graph: Any, mesh: Any, step: int) -> LoadingPlan:
    graph = graph.mix().distribute("CP").cost(COST)
    return graph.balance(context_parallel="dynamic", exchange=FREE).plan()


def for_tensor_peers(graph: Any, mesh: Any, step: int) -> LoadingPlan:
    graph = graph.mix().distribute("CP").cost(COST).broadcast_at("TP")
    return graph.balance(context_parallel="dynamic", exchange=FREE).plan()


def job(folder: Path, **options: Any) -> es.Job:
    given = {
        "sources": sources(folder, longest=200),
        "mesh": es.Mesh(DP=2, CP=2),
        "strategy": dynamic,
        "micro_batches": 1,
        "max_tokens": MOST,
        "samples_per_step": 24,
    }
    return job_of(folder, **{**given, **options})


def check_step(plan: LoadingPlan, taken: list[tuple[list[Any], es.ServiceStep]]) -> Counter[int]:
    """Checks a step on all ranks against the planner; the sizes of groups that occur."""
    ranks, tokens = len(taken), plan.samples.lengths["text"]
    options = DynamicContext(ranks=ranks, tokens_per_rank=MOST, cost=COST, exchange=FREE)
    wanted = plan_dynamic_context(tokens, options)
    assert plan.micro_batches == wanted.micro_batches
    sizes: Counter[int] = Counter()
    weights = []
    for k in range(plan.micro_batches):
        rank = 0
        while rank < ranks:
            shards = [batches[k] for batches, _ in taken]
            group = shards[rank]["context_ranks"]
            assert group.start == rank
            sizes[len(group)] += 1
            rows = plan.assignment.members(rank, k)
            documents = wanted.group(wanted.group_of(k, rank))
            if len(documents):  # a group without any has joined another
                assert rows.tolist() == documents.tolist()
            own = [shards[each] for each in group]
            assert all(each["context_ranks"] == group for each in own)
            assert all(each["input_ids"].shape[1] <= MOST for each in own)
            joined = unshard([each["input_ids"] for each in own], own[0]["sharding"])
            counts = plan.samples.lengths["text"][rows]
            starts = np.append(0, counts.cumsum()[:-1])
            assert np.diff(own[0]["cu_seqlens"].numpy()).tolist() == counts.tolist()
            # In the stored rows the tokens behind the first one count up from 1.
            count = np.arange(counts.sum()) - starts.repeat(counts)
            inside = count > 0
            assert joined[0].numpy()[inside].tolist() == count[inside].tolist()
            for each, (_, step) in zip(own, (taken[member] for member in group)):
                scale, labels = step.loss_scales[k], each["shift_labels"]
                supervised = int((labels != -100).sum())
                assert step.supervised[k] == supervised
                weights.append(scale / ranks if supervised else 0.0)
                total = step.total_supervised
                assert weights[-1] * total == pytest.approx(supervised)
            rank += len(group)
    assert sum(weights) == pytest.approx(1)
    return sizes


@pytest.mark.backends("local", "processes")
def test_groups_are_those_of_the_planner_and_shards_make_up_their_rows(
    tmp_path: Path, start: Any
) -> None:
    with start(job(tmp_path), loaders=2) as service:
        everyone: list[Batches] = [steps_of(service.client(rank), 4) for rank in range(4)]
        plans = [service.plan(number) for number in range(4)]
        read = sum(loader["staged"] for loader in service.status()["loaders"])
    sizes: Counter[int] = Counter()
    for plan, *taken in zip(plans, *everyone):
        sizes += check_step(plan, taken)
        assert plan.imbalance < 1.2 < plan.imbalance_before
        again = from_json(to_json(plan))
        assert np.array_equal(again.group_first, plan.group_first)
        assert again.imbalance == plan.imbalance
    assert set(sizes) >= {1, 2, 3}
    assert read >= 4 * 24
    names = [str(name) for plan in plans for name in map(plan.samples.identity, range(len(plan)))]
    assert len(set(names)) == len(names) == 4 * 24


def test_a_plan_with_groups_is_shown_and_read_back_or_refused(tmp_path: Path, start: Any) -> None:
    with start(job(tmp_path)) as service:
        plan = service.plan(0)
    rows = np.flatnonzero(plan.assignment.placed)
    row = max(rows, key=lambda r: len(plan.group(*place_of(plan, r))))
    group = plan.group(*place_of(plan, row))
    assert len(group) > 1
    delivered = trace(plan, int(row))[-1].after
    assert delivered.where == f"ranks {', '.join(map(str, group))}"
    text = json.loads(to_json(plan))
    for damage in ([[0]], [[1] * plan.micro_batches] * 4, [["x"]]):
        with pytest.raises(ConfigurationError):
            from_json(json.dumps({**text, "group_first": damage}))


def place_of(plan: LoadingPlan, row: int) -> tuple[int, int]:
    return int(plan.assignment.bucket[row]), int(plan.assignment.micro_batch[row])


def test_constructors_that_share_a_group_build_the_same_row(tmp_path: Path, start: Any) -> None:
    own = job(tmp_path)
    with start(own, loaders=2) as one, start(own, loaders=2, constructors=2) as two:
        for rank in range(4):
            assert comparable(steps_of(one.client(rank), 3)) == comparable(
                steps_of(two.client(rank), 3)
            )


def test_tensor_parallel_peers_and_pipeline_stages_get_the_shards_of_their_rank(
    tmp_path: Path, start: Any
) -> None:
    flat = job(tmp_path)
    deep = job(tmp_path, mesh=es.Mesh(PP=2, DP=2, CP=2, TP=2), strategy=for_tensor_peers)
    with start(flat) as one, start(deep) as other:
        for rank in range(4):
            place = {"DP": rank // 2, "CP": rank % 2}
            (wanted,) = comparable(steps_of(one.client(rank), 1))
            for stage in range(2):
                client = other.client(deep.tree.rank({"PP": stage, **place}))
                assert comparable(steps_of(client, 1)) == [wanted]
                assert not other.client(deep.tree.rank({"PP": stage, "TP": 1, **place})).fetches


@pytest.mark.backends("local", "processes")
def test_a_run_is_gone_on_with_exactly_and_on_another_number_of_ranks_as_planned(
    tmp_path: Path, start: Any
) -> None:
    own = job(tmp_path)
    with start(own, loaders=2) as service:
        wanted = [comparable(steps_of(service.client(rank), 4)) for rank in range(4)]
        state = service.state_dict(2)
    with start(own, loaders=2, state=state) as service:
        again = [comparable(steps_of(service.client(rank), 2)) for rank in range(4)]
    assert again == [steps[2:] for steps in wanted]
    three = own.on(es.Mesh(DP=3))
    with start(three, loaders=2, state=state) as service:
        taken = [steps_of(service.client(rank), 1)[0] for rank in range(3)]
        check_step(service.plan(2), taken)


def test_few_short_samples_leave_no_rank_without_work(tmp_path: Path, start: Any) -> None:
    own = job(tmp_path, samples_per_step=2, mesh=es.Mesh(DP=5))
    with start(own) as service:
        taken = [steps_of(service.client(rank), 1)[0] for rank in range(5)]
        assert sum(check_step(service.plan(0), taken).values()) <= 2
    assert all(batches[0]["input_ids"].numel() for batches, _ in taken)


def at_dp(graph: Any, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance(context_parallel="dynamic").plan()


def by_a_function(graph: Any, mesh: Any, step: int) -> LoadingPlan:
    graph = graph.mix().distribute("CP").cost(squares)
    return graph.balance(context_parallel="dynamic").plan()


def with_subplan(graph: Any, mesh: Any, step: int) -> LoadingPlan:
    graph = graph.mix()
    whole = graph.distribute("CP").balance(context_parallel="dynamic")
    return whole.plan({"encoder": graph.distribute("WORLD")})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strategy": at_dp}, ConfigurationError, 'distribute."CP"'),
        ({"strategy": by_a_function}, ConfigurationError, "per_token and per_pair"),
        ({"strategy": with_subplan}, ConfigurationError, "subplans"),
        ({"max_tokens": None}, ConfigurationError, "needs max_tokens"),
        ({"max_tokens": 10}, SampleError, "sample .* over the 40 that 4 ranks"),
        ({"sharding": None}, CollateError, "sharding=None"),
        ({"collate": PackCollator(pad_to_multiple_of=64)}, CollateError, "pads"),
        ({"samples_per_step": 2, "micro_batches": 4}, ConfigurationError, "draw more"),
    ],
)
def test_what_does_not_go_with_groups_is_refused(
    tmp_path: Path, start: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with start(job(tmp_path, **options)) as service, pytest.raises(error, match=message):
        next(service.client(0))
