"""Each drawn sample comes once, to exactly the ranks that the mesh says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import (
    Rows,
    broadcast_at_tp,
    comparable,
    job_of,
    plain,
    squares,
    steps_of,
    striped,
)

import evenstep.service as es
from evenstep.context_parallel import unshard
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import shard_per_document


def ids_of(batch: dict[str, Any]) -> list[int]:
    """The first token of each document of a row identifies its sample."""
    starts = batch["cu_seqlens"][:-1].tolist()
    return [int(batch["input_ids"][0, start]) for start in starts]


@settings(max_examples=8)
@given(
    sizes=st.fixed_dictionaries({a: st.integers(1, 2) for a in ("PP", "DP", "CP", "TP")}),
    axis=st.sampled_from(["DP", "CP"]),
    broadcast=st.sampled_from([(), ("TP",), ("CP",), ("CP", "TP")]),
)
def test_each_drawn_sample_is_delivered_once_to_the_ranks_that_the_mesh_says(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: dict[str, int],
    axis: str,
    broadcast: tuple[str, ...],
    start: Any,
) -> None:
    folder = tmp_path_factory.mktemp("mesh")

    def strategy(graph: Any, mesh: Any, step: int) -> Any:
        graph = graph.mix().distribute(axis).cost(squares).balance("greedy")
        return (graph.broadcast_at(*broadcast) if broadcast else graph).plan()

    job = job_of(folder, mesh=es.Mesh(**sizes), strategy=strategy, sharding=None)
    tree = job.tree
    with start(job, loaders=2) as service:
        for number in range(2):
            plan = service.plan(number)
            per_bucket: dict[int, list[list[str]]] = {}
            for rank in range(len(tree)):
                client = service.client(rank)
                place, delivery = tree.place(rank), plan.delivery
                assert client.fetches == (rank in delivery.fetching.tolist())
                if not client.fetches:
                    continue
                batches, step = steps_of(client, number + 1)[number]
                assert step.rank == tree.delivery(axis).bucket_of(tree.rank(place))
                fetched = {step.rank: batches, **step.peers}
                assert tuple(sorted(fetched)) == delivery.buckets_of(rank)
                names = [[str(i) for i in ids] for ids in step.sample_ids]
                per_bucket.setdefault(step.rank, names)
                assert per_bucket[step.rank] == names
                for ids, batch in zip(names, batches):
                    assert len(ids_of(batch)) == len(ids)
                for bucket, others in step.peers.items():
                    members = [list(plan.members(bucket, k).index) for k in range(len(others))]
                    assert [len(ids_of(b)) for b in others] == [len(m) for m in members]
            everything = Counter(name for b in per_bucket.values() for m in b for name in m)
            if not set(broadcast) & {"CP"} or axis == "DP":
                assert set(per_bucket) == set(range(plan.buckets))
                placed = plan.samples[plan.assignment.placed]
                expected = Counter(str(placed.identity(row)) for row in range(len(placed)))
                assert everything == expected


def test_context_parallel_ranks_get_complementary_shards_of_the_same_rows(
    tmp_path: Path, start: Any
) -> None:
    hybrid = ("per-document", "hybrid")
    known: dict[Any, Any] = {hybrid: hybrid, shard_per_document: ("per-document",)}
    for method in ("per-sequence", *known):
        job = job_of(tmp_path, mesh=es.Mesh(DP=2, CP=2), sharding=method)
        whole = job_of(tmp_path, mesh=es.Mesh(DP=2, CP=2), sharding=None)
        with start(job) as service, start(whole) as rows:
            for dp in range(2):
                parts = [steps_of(service.client(DP=dp, CP=cp), 3) for cp in range(2)]
                full = steps_of(rows.client(DP=dp), 3)
                for (first, one), (second, other), (expected, _) in zip(*parts, full):
                    assert (one.context_rank, other.context_rank) == (0, 1)
                    for a, b, row in zip(first, second, expected):
                        assert a["sharding"].method in known.get(method, (method,))
                        tokens = unshard([a["input_ids"], b["input_ids"]], a["sharding"])
                        assert torch.equal(tokens, row["input_ids"])
                        labels = unshard([a["shift_labels"], b["shift_labels"]], a["sharding"])
                        shifted = torch.full_like(row["labels"], -100)
                        shifted[:, :-1] = row["labels"][:, 1:]
                        assert torch.equal(labels, shifted)


def test_peers_of_a_broadcast_have_nothing_to_fetch_and_the_error_says_who_does(
    tmp_path: Path, start: Any
) -> None:
    job = job_of(tmp_path, mesh=es.Mesh(DP=2, TP=2), strategy=broadcast_at_tp)
    with start(job) as service:
        peer = service.client(DP=1, TP=1)
        assert not peer.fetches
        with pytest.raises(ConfigurationError, match=r"rank 3 .*TP=1.*rank 2 .*fetches for it"):
            next(peer)
        fetching = service.client(DP=1, TP=0)
        assert fetching.fetches
        assert len(steps_of(fetching, 2)) == 2


def test_stages_in_the_middle_of_a_pipeline_need_no_data(tmp_path: Path, start: Any) -> None:
    with start(job_of(tmp_path, mesh=es.Mesh(PP=3))) as service:
        clients = [service.client(PP=stage) for stage in range(3)]
        assert [client.fetches for client in clients] == [True, False, True]
        with pytest.raises(ConfigurationError, match="its stage of the pipeline needs no data"):
            next(clients[1])
        first, last = (steps_of(clients[stage], 2) for stage in (0, 2))
        assert [plain(batches) for batches, _ in first] == [plain(batches) for batches, _ in last]


def test_clients_far_apart_hold_few_steps_and_get_the_same(tmp_path: Path, start: Any) -> None:
    """The one behind has its steps made again, from the same plans."""
    job = job_of(tmp_path, prefetch=1, plans_kept=64)
    with start(job, constructors=2) as service:
        expected = [comparable(steps_of(service.client(rank), 24)) for rank in range(2)]
    with start(job, constructors=1, loaders=2) as service:
        ahead, behind = service.client(0), service.client(1)
        found = [comparable(steps_of(ahead, 24)), []]
        for _ in range(12):
            status = service.status()
            assert max(each["held_steps"] for each in status["constructors"]) <= 8
            # Beside those, up to 7 small ones ahead of each client.
            assert max(len(each["staged_steps"]) for each in status["loaders"]) <= 12 + 2 * 7
            found[1] += comparable(steps_of(behind, 2))
            found[0] += comparable(steps_of(ahead, 1))
        assert found[0][:24] == expected[0]
        assert found[1] == expected[1]


# A vision encoder's samples come to all clients, with the way back to the backbone's


def pictured(row: Mapping[str, Any]) -> dict[str, Any]:
    """Every third sample has no image; patches tell which sample they are of."""
    side = row["id"] % 3
    patches = torch.full((side * 4, 2), float(row["id"]))
    return {
        "input_ids": [row["id"], *range(1, row["length"])],
        "image_grid_thw": torch.tensor([[1, 4, side]]) if side else None,
        "pixel_values": patches if side else None,
    }


def text_of(samples: Any) -> list[int]:
    return [sample["input_ids"][0] for sample in samples]


def vision(graph: Any, mesh: Any, step: int) -> Any:
    encoder = graph.modality("image").distribute("WORLD").cost(squares).balance("greedy")
    backbone = graph.modality("text", "image").mix().distribute("DP").balance("karmarkar_karp")
    return backbone.broadcast_at("TP").plan(subplans={"encoder": encoder})


def job_of_pictures(folder: Path, **options: Any) -> es.Job:
    table = [{"id": 100 + k, "length": 3 + k * 7 % 11} for k in range(60)]
    return job_of(
        folder,
        sources=[es.Source("pictures", Rows(table), transform=pictured, block=8)],
        mesh=es.Mesh(DP=2, TP=2),
        strategy=vision,
        collate=text_of,
        counted=("text", "image"),
        **options,
    )


def test_every_image_is_worked_on_once_and_finds_its_way_to_the_backbone(
    tmp_path: Path, start: Any
) -> None:
    made = job_of_pictures(tmp_path)
    with start(made, loaders=striped(made, 3, 4)) as service:
        taken = [steps_of(service.client(rank), 3) for rank in range(4)]
        for number in range(3):
            plan = service.plan(number)
            made = {s.rank: batches for batches, s in (t[number] for t in taken) if batches}
            worked: list[str] = []
            for batches, about in (t[number] for t in taken):
                part = about.subplans["encoder"]
                _check_routes(part, about, made, batches)
                tables = part.samples
                worked += [str(t.identity(row)) for t in tables for row in range(len(t))]
            has = plan.assignment.placed & (plan.samples.lengths["image"] > 0)
            assert sorted(worked) == sorted(str(plan.samples.identity(r)) for r in has.nonzero()[0])


def _check_routes(part: Any, about: Any, backbone: Any, batches: Any) -> None:
    for made, table, goes_to in zip(part.micro_batches, part.samples, part.goes_to):
        assert len(table) == len(goes_to)
        if made is None:
            assert not len(table)
            continue
        sizes = made["image_grid_thw"].prod(dim=1).tolist()
        assert len(made["pixel_values"]) == sum(sizes)
        patches = made["pixel_values"][:, 0].long().split(sizes)
        assert [len(p.unique()) for p in patches] == [1] * len(sizes)
        for own, (bucket, micro_batch, place) in zip(patches, goes_to.tolist()):
            assert backbone[bucket][micro_batch][place] == int(own[0])
    assert part.imbalance <= part.imbalance_before + 1e-9
    assert [len(batch) for batch in batches] in ([], [len(table) for table in about.tables])
    for table, comes_from in zip(about.tables, part.comes_from):
        assert len(table) == len(comes_from)
        has = table.lengths["image"] > 0
        assert ((comes_from[:, 0] >= 0) == has).all()


def test_a_peer_of_a_broadcast_fetches_its_part_of_a_subplan_and_nothing_else(
    tmp_path: Path, start: Any
) -> None:
    with start(job_of_pictures(tmp_path)) as service:
        for rank, source in [(0, 0), (1, 0), (2, 2), (3, 2)]:
            client = service.client(rank)
            assert client.fetches
            batches, about = next(client)
            assert about.fetched_by == source
            assert len(batches) == (2 if source == rank else 0) == len(about.loss_scales)
            assert about.subplans["encoder"].micro_batches


def test_a_subplan_is_collated_as_the_user_says(tmp_path: Path, start: Any) -> None:
    given = job_of_pictures(tmp_path, subplan_collate={"encoder": text_of})
    with start(given) as service:
        _, about = next(service.client(0))
    part = about.subplans["encoder"]
    for made, table in zip(part.micro_batches, part.samples):
        assert len(made or []) == len(table)
        assert all(type(each) is int for each in made or [])
