"""Any policy in the service: its steps are those of ranks that agree without a centre."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_world import (
    Rows,
    in_one_process,
    job_of,
    new_job,
    rows,
    sources,
    steps_of,
    tokens_of_row,
)

import evenstep
import evenstep.service as es
from evenstep.arrays import Int64Array
from evenstep.cost import FittedCost, VisionLanguageCost
from evenstep.errors import ConfigurationError, MismatchError, SampleError
from evenstep.plan import Policy
from evenstep.protocol import RankProtocol
from evenstep.protocol.epoch_options import EpochOptions
from evenstep.protocol.wire import Exchanged
from evenstep.service.planner.planner import Planner
from evenstep.strategy import BufferedMetadata, SampleTable
from evenstep.tools.simulate.rank import SimulatedRank

POLICIES = {
    "even": evenstep.Even(256),
    "even-packed": evenstep.Even(256, packed=True),
    "even-packed-updates": evenstep.Even(256, packed=True, sync="update"),
    "workload-packing": evenstep.WorkloadPacking(256, micro_batches=2),
    "sequence-packing": evenstep.SequencePacking(256),
    "pool-sort": evenstep.PoolSort(batch_size=8),
    "token-budget": evenstep.TokenBudget(256),
    "fixed-batch": evenstep.FixedBatch(8),
}
COUNTS = (90, 60, 80)
SAMPLES = sum(COUNTS)
each_policy = pytest.mark.parametrize("name", POLICIES)


def policy_job(folder: Path, name: str = "even-packed", **options: Any) -> es.Job:
    policy = POLICIES[name]
    given = {
        "sources": None if "sources" in options else sources(folder, counts=COUNTS),
        "micro_batches": 1 if policy.micro_batches > 1 else 2,
        "stop": "all_exhausted",
        **options,
    }
    return job_of(folder, policy=policy, strategy=None, max_tokens=None, **given)


# Plans


def table_of(counts: Sequence[int], seed: int = 0) -> SampleTable:
    """Sources with so many samples each, whose lengths differ."""
    rng = np.random.default_rng(seed)
    number = np.repeat(np.arange(len(counts)), counts)
    lengths = np.clip(rng.lognormal(3, 0.8, len(number)).astype(int), 2, 250)
    position = np.concatenate([np.arange(count) for count in counts])
    return SampleTable(
        sources=("a", "b"),
        source=number,
        position=position,
        shard=np.zeros(len(number), np.int32),
        index=position,
        lengths={"text": lengths, "image": 0 * lengths, "supervised": lengths // 2},
    )


def planned(job: es.Job, table: SampleTable, steps: int) -> list[list[list[list[tuple[int, int]]]]]:
    """[steps][ranks][micro-batches] source and position of each sample."""
    planner = Planner(job, BufferedMetadata(table))
    found = []
    for step in range(steps):
        plan = planner.plan(step)
        assert plan is not None
        cells = [
            [plan.members(b, k) for k in range(plan.micro_batches)] for b in range(plan.buckets)
        ]
        found.append([[names_of(each) for each in own] for own in cells])
    return found


def names_of(table: SampleTable) -> list[tuple[int, int]]:
    return list(zip(table.source.tolist(), table.position.tolist()))


def planned_job(name: str, world_size: int) -> es.Job:
    return new_job(
        sources=[es.Source(each, Rows([{"length": 1}])) for each in "ab"],
        mesh=es.Mesh(DP=world_size),
        policy=POLICIES[name],
        micro_batches=2,
        samples_per_step=100,
        seed=7,
    )


def stream_of(job: es.Job, table: SampleTable) -> SampleTable:
    """All that the job's mixture draws before it reads a source for the second time."""
    mixer, metadata, drawn = job.mixture({}), BufferedMetadata(table), []
    while sum(map(len, drawn)) < 0.8 * len(table):
        drawn.append(mixer.draw(mixer.step, metadata))
    return SampleTable.concatenate(drawn)


def simulated(
    policy: Policy, lengths: Int64Array, world_size: int, *, accumulate: int, steps: int
) -> list[list[list[Int64Array]]]:
    """[ranks][steps] micro-batches of entries, of ranks that know nothing of the stream's end."""
    dealt = policy.deals_on_demand
    options = EpochOptions(
        policy=policy, world_size=world_size, buffer_size="auto", accumulate=accumulate, seed=7
    )
    ranks = []
    for rank in range(world_size):
        protocol = RankProtocol(options, rank=rank, entries=len(lengths) if dealt else None)
        own = lengths[:0] if dealt else lengths[rank::world_size]
        ranks.append(SimulatedRank(protocol, own, lengths if dealt else None))
    while len(ranks[0].steps) < steps:
        for each in ranks:
            each.fill()
        messages = Exchanged([each.outgoing() for each in ranks])
        for each in ranks:
            each.incoming(messages)
    every = np.arange(len(lengths))
    own_entries = [each.entries if dealt else every[n::world_size] for n, each in enumerate(ranks)]
    return [
        [[own[group] for group in step.micro_batches] for step in each.steps]
        for own, each in zip(own_entries, ranks)
    ]


@pytest.mark.parametrize(("name", "world_size"), [("even", 1), *((each, 8) for each in POLICIES)])
def test_steps_are_those_of_a_simulation_of_the_same_stream(name: str, world_size: int) -> None:
    steps = 12
    policy, job = POLICIES[name], planned_job(name, world_size)
    accumulate = job.micro_batches // policy.micro_batches
    table = table_of([2000 * world_size + 3000] * 2)
    found, drawn = planned(job, table, steps), stream_of(job, table)
    lengths, made = drawn.lengths["text"], steps * accumulate
    expected = simulated(policy, lengths, world_size, accumulate=accumulate, steps=made)
    for step, own in enumerate(found):
        for rank in range(world_size):
            parts = expected[rank][step * accumulate : (step + 1) * accumulate]
            assert own[rank] == [names_of(drawn[group]) for part in parts for group in part]


# Batches


def first_tokens(batches: Sequence[Any]) -> Counter[int]:
    """What identifies each sample, counted, after a check of all its tokens."""
    found: Counter[int] = Counter()
    for batch in batches:
        ids = batch["input_ids"]
        if "cu_seqlens" in batch:
            ends = batch["cu_seqlens"].tolist()
            samples = [ids[0, begin:end] for begin, end in pairwise(ends)]
        else:
            samples = [row[mask.bool()] for row, mask in zip(ids, batch["attention_mask"])]
        for sample in samples:
            assert sample[1:].tolist() == list(range(1, len(sample)))
            found[int(sample[0])] += 1
    return found


@each_policy
def test_each_sample_comes_once_in_batches_that_fit_on_every_rank(
    name: str, tmp_path: Path
) -> None:
    dp, given = 3, sources(tmp_path, counts=(240, 180, 200))
    job = policy_job(tmp_path, name, mesh=es.Mesh(DP=dp), sources=given)
    with es.start(job, backend="local") as service:
        taken = [steps_of(service.client(rank)) for rank in range(dp)]
        left = service.status()["planner"]["left_over"]
    assert len({len(own) for own in taken}) == 1
    found: Counter[int] = Counter()
    for steps in zip(*taken):
        assert len({len(batches) for batches, _ in steps}) == 1
        for batches, step in steps:
            found += first_tokens(batches)
            assert step.samples == first_tokens(batches).total()
            if (most := POLICIES[name].max_length) is not None:
                assert max(batch["input_ids"].numel() for batch in batches) <= 1.25 * most
    assert set(found.values()) == {1}
    assert found.total() == 620 - left
    assert left < 3 * dp


@each_policy
def test_a_resumed_job_makes_the_steps_that_would_have_followed(name: str, tmp_path: Path) -> None:
    job = policy_job(tmp_path, name)
    whole = in_one_process(job)
    states = []
    with es.start(job, backend="local") as service:
        client = service.client(0)
        for _ in whole[0]:
            next(client)
            states.append(json.dumps(client.state_dict()))
    for step in (1, len(whole[0]) // 2, len(whole[0]) - 2):
        resumed = in_one_process(job, state=json.loads(states[step - 1]))
        assert resumed == [own[step:] for own in whole], step


@pytest.mark.parametrize(("name", "dp"), [("even", 3), ("workload-packing", 1), ("pool-sort", 3)])
def test_other_ranks_get_each_remaining_sample_once(name: str, dp: int, tmp_path: Path) -> None:
    job = policy_job(tmp_path, name)
    found: Counter[int] = Counter()
    with es.start(job, backend="local") as service:
        clients = [service.client(rank) for rank in range(2)]
        for client in clients:
            for batches, _ in steps_of(client, 3):
                found += first_tokens(batches)
        state = json.loads(json.dumps(clients[0].state_dict()))
    job = job.on(es.Mesh(DP=dp))
    with es.start(job, backend="local", state=state) as service:
        for rank in range(dp):
            for batches, _ in steps_of(service.client(rank)):
                found += first_tokens(batches)
        left = service.status()["planner"]["left_over"]
    assert set(found.values()) == {1}
    assert found.total() == SAMPLES - left


def test_a_job_goes_over_to_a_policy_and_not_back(tmp_path: Path) -> None:
    by_policy = policy_job(tmp_path)
    by_strategy = job_of(tmp_path, sources=list(by_policy.sources), stop="all_exhausted")
    found: Counter[int] = Counter()
    state = None
    for job, count in [(by_strategy, 3), (by_policy, None)]:
        with es.start(job, backend="local", state=state) as service:
            clients = [service.client(rank) for rank in range(2)]
            for client in clients:
                for batches, _ in steps_of(client, count):
                    found += first_tokens(batches)
            state = json.loads(json.dumps(clients[0].state_dict()))
            left = service.status()["planner"]["left_over"]
    assert set(found.values()) == {1}
    assert found.total() == SAMPLES - left
    with pytest.raises(MismatchError, match="resume with a policy"):
        es.start(by_strategy, backend="local", state=state).close()


def test_context_parallel_ranks_share_the_rows_that_one_rank_would_have(tmp_path: Path) -> None:
    mesh = es.Mesh(DP=2, CP=2)
    job = policy_job(tmp_path, "workload-packing", mesh=mesh)
    whole = in_one_process(policy_job(tmp_path, "workload-packing"))
    shared = in_one_process(job)
    for dp in range(2):
        first, second = (shared[int(mesh.ranks[0, dp, cp, 0])] for cp in range(2))
        for row, one, other in zip(whole[dp], first, second, strict=True):
            assert row[3] == one[3] == other[3]  # the samples
            for batch, *parts in zip(row[-1], one[-1], other[-1], strict=True):
                tokens = Counter(token for part in parts for token in part["input_ids"][0])
                padded = tokens - Counter(batch["input_ids"][0])
                assert set(padded) <= {0}
                assert not Counter(batch["input_ids"][0]) - tokens


def with_image(row: Any) -> dict[str, Any]:
    sample = tokens_of_row(row)
    side = 2 + row["id"] % 5
    return {**sample, "image_grid_thw": np.array([[1, side, side]])}


def test_images_are_limited_and_count(tmp_path: Path) -> None:
    part = FittedCost(per_group=0.0, per_token=1.0, per_pair=0.01)
    cost = VisionLanguageCost(language=part, vision=part)
    policy = evenstep.Even(256, max_patches=80, cost=cost)
    job = job_of(
        tmp_path,
        sources=[es.Source("images", Rows(rows(300, 1000, 60)), transform=with_image)],
        policy=policy,
        strategy=None,
        max_tokens=None,
        stop="all_exhausted",
        collate=list,
    )
    with es.start(job, backend="local") as service:
        taken = [steps_of(service.client(rank)) for rank in range(2)]
    patches = [
        [sum(int(s["image_grid_thw"].prod()) for s in group) for group in batches]
        for own in taken
        for batches, _ in own
    ]
    assert max(map(max, patches)) <= 80
    seen = Counter(s["id"] for own in taken for batches, _ in own for b in batches for s in b)
    assert set(seen.values()) == {1}


# Errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "even"}, r"'even' is no policy: pass policy=evenstep.Even.* or strategy="),
        ({"polcy": POLICIES["even"]}, "Job has no argument polcy=; policy= is meant"),
        ({"sources": 3}, "sources is a int and must be a list"),
        ({"memory": evenstep.Memory()}, "must be an evenstep.service.ServiceMemory"),
        ({"strategy": job_of}, "pass one of both"),
        ({"max_tokens": 100}, "give the policy the number"),
        ({"policy": evenstep.Even("auto")}, "give the policy the number"),
        (
            {"policy": evenstep.WorkloadPacking(9, micro_batches=2, context_parallel=2)},
            "Mesh\\(CP=2",
        ),
        ({"policy": POLICIES["workload-packing"], "micro_batches": 3}, "leave that of the job out"),
        ({"collate": "pad"}, "the policy packs its groups"),
        ({"policy": POLICIES["even"], "collate": "pack"}, "the policy pads its groups"),
        ({"policy": evenstep.Even(256, cost=evenstep.MeasuredCost())}, "does not time steps"),
        ({"broadcast_at": ["XP"]}, "XP"),
        ({"policy": None}, "or pass policy="),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given = {"policy": POLICIES["even-packed"], "strategy": None, "max_tokens": None, **options}
    with pytest.raises(ConfigurationError, match=message):
        job_of(tmp_path, **given)


def test_a_sample_that_no_group_holds_is_named(tmp_path: Path) -> None:
    long = Rows([*rows(50, 0, 60), {"id": 9, "length": 300}])
    job = policy_job(tmp_path, sources=[es.Source("long", long, transform=tokens_of_row)])
    with (
        es.start(job, backend="local") as service,
        pytest.raises(SampleError, match=r"long\[0\]\[50\] has 300 tokens"),
    ):
        steps_of(service.client(0))


# Samples that are too long

LIMIT = 24


@pytest.mark.parametrize("choice", ["skip", "truncate"])
@pytest.mark.parametrize("by", ["policy", "strategy"])
def test_samples_that_are_too_long_are_left_out_or_cut_and_a_resume_knows(
    choice: str, by: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"max_tokens": LIMIT}
    if by == "policy":
        given = {"policy": evenstep.Even(LIMIT), "strategy": None, "max_tokens": None}
    job = job_of(
        tmp_path,
        sources=sources(tmp_path, counts=COUNTS),
        mesh=es.Mesh(DP=1),
        stop="all_exhausted",
        samples_per_step=4,
        micro_batches=4,
        too_long=choice,
        **given,
    )
    lengths = {
        row["id"]: row["length"]
        for number, count in enumerate(COUNTS)
        for row in rows(count, 1000 * (number + 1), 60)
    }
    long = [number for number, length in lengths.items() if length > LIMIT]
    found: dict[int, int] = {}
    states = []
    with es.start(job, backend="local") as service:
        client = service.client(0)
        for batches, _ in client:
            states.append(json.dumps(client.state_dict()))
            for batch in batches:
                for number, tokens in documents_of(batch):
                    assert number not in found
                    found[number] = tokens
        counts = service.status()["planner"]["bad_samples"]
    kept = lengths if choice == "truncate" else {n: lengths[n] for n in lengths.keys() - {*long}}
    assert found == {number: min(length, LIMIT) for number, length in kept.items()}
    assert sum(counts.values()) == (len(long) if choice == "skip" else 0)
    assert all(name.endswith(" (too long)") for name in counts)
    middle = len(states) // 2
    with es.start(job, backend="local", state=json.loads(states[middle])) as service:
        assert len(list(service.client(0))) == len(states) - middle - 1
        assert service.status()["planner"]["bad_samples"] == counts


def documents_of(batch: Any) -> list[tuple[int, int]]:
    """The first token of each document, and how many it has."""
    if "cu_seqlens" in batch:
        ends = batch["cu_seqlens"].tolist()
        return [(int(batch["input_ids"].flatten()[i]), j - i) for i, j in pairwise(ends) if j > i]
    masks = batch["attention_mask"].sum(1).tolist()
    return [(int(row[0]), count) for row, count in zip(batch["input_ids"], masks)]


def test_a_source_of_which_every_sample_is_too_long_ends_the_job(tmp_path: Path) -> None:
    table = [{"id": n, "length": 99} for n in range(5)]
    source = es.Source("a", Rows(table), transform=tokens_of_row)
    job = job_of(tmp_path, sources=[source], mesh=es.Mesh(DP=1), too_long="skip", max_tokens=24)
    said = "source 'a' has no other samples"
    with es.start(job, backend="local") as service, pytest.raises(SampleError, match=said):
        service.plan(0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"too_long": "split"}, "too_long='split' is for a DataLoader"),
        ({"too_long": "alone"}, "too_long='alone' is for a DataLoader"),
        ({"too_long": "skip", "max_tokens": None}, "needs a limit: pass max_tokens="),
        ({"too_long": "truncate", "counted": ("text", "image")}, "which of them to cut"),
    ],
)
def test_choices_that_a_service_does_not_have_are_refused(
    options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        job_of(tmp_path, **options)
