"""A vision encoder's samples come to all clients, with the way back to the backbone's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from service_world import Rows, job_of, squares, steps_of, striped

import evenstep.service as es


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


def job(folder: Path, **options: Any) -> es.Job:
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
    made = job(tmp_path)
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
    with start(job(tmp_path)) as service:
        for rank, source in [(0, 0), (1, 0), (2, 2), (3, 2)]:
            client = service.client(rank)
            assert client.fetches
            batches, about = next(client)
            assert about.fetched_by == source
            assert len(batches) == (2 if source == rank else 0) == len(about.loss_scales)
            assert about.subplans["encoder"].micro_batches


def test_a_subplan_is_collated_as_the_user_says(tmp_path: Path, start: Any) -> None:
    given = job(tmp_path, subplan_collate={"encoder": text_of})
    with start(given) as service:
        _, about = next(service.client(0))
    part = about.subplans["encoder"]
    for made, table in zip(part.micro_batches, part.samples):
        assert len(made or []) == len(table)
        assert all(type(each) is int for each in made or [])
