"""Images that are dealt one by one: each comes once, and gradients are those of one device."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import Rank, run
from service_world import Rows, steps_of, striped

import evenstep.service as es
from evenstep.batch import unbatch
from evenstep.errors import PeerError, SampleError
from evenstep.strategy import to_json
from page_code import blocks

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("PIL", reason="Pillow is not installed")

SAMPLES = 8  # of a step
IMAGES = [20, 0, 1, 3, 0, 1, 0, 2, *[0] * 7, 1, *[0] * 8]
"""Of each sample: of the second step one has an image, and of the third none."""
SEED = 5


def family() -> Any:
    from families.qwen_vl import QWEN2_5_VL

    return QWEN2_5_VL


def prepared(row: dict[str, Any]) -> dict[str, Any]:
    chat = family()
    sample = unbatch(chat.collate([chat.row(row["id"], images=row["images"])]))
    return {name: value for name, value in sample.items() if name != "attention_mask"}


def page_job(mesh: es.Mesh) -> es.Job:
    table = [{"id": number, "images": images} for number, images in enumerate(IMAGES)]
    names: dict[str, Any] = {
        "es": es,
        "sources": [es.Source("chats", Rows(table), transform=prepared, shuffle=False)],
        "mesh": mesh,
        "samples": SAMPLES,
        "vit": lambda patches: patches * (100 + patches),
        "flops": lambda tokens: tokens,
    }
    exec(compile(blocks("service.md", "Images one by one")[0], "service.md", "exec"), names)
    return names["job"]


@cache
def delivered(**sizes: int) -> tuple[list[Any], list[Any]]:
    """The plans of the three steps, and what each rank gets in them."""
    job = page_job(es.Mesh(**sizes))
    with es.start(job, backend="local", loaders=striped(job, 2, 3), constructors=2) as service:
        taken = [steps_of(service.client(rank), 3) for rank in range(len(job.tree))]
        return [service.plan(step) for step in range(3)], taken


def train(rank: Rank, taken: list[Any], *, in_ddp: bool = False) -> list[dict[str, torch.Tensor]]:
    """Runs the loop of the page. Gradients of each step."""
    model = family().model(SEED).double()
    gradients: list[dict[str, torch.Tensor]] = []

    def average_gradients(model: Any) -> None:
        for name, each in model.named_parameters():
            if in_ddp and name.startswith(family().tower):
                continue  # DDP has averaged it
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            dist.all_reduce(each.grad)
            each.grad /= rank.world_size
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters()})

    names = {
        "client": taken[rank.rank],
        "tower": Blanks(model) if in_ddp else model.model.visual,
        "model": model,
        "average_gradients": average_gradients,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.0),
    }
    (loop,) = blocks("service.md", "Images one by one")[1:]
    if in_ddp:
        of_images = 'images and tower(images["pixel_values"], images["image_grid_thw"])'
        assert of_images in loop
        loop = loop.replace(f"{of_images}.pooler_output", "tower(images)")
    exec(compile(loop, "service.md", "exec"), names)
    return gradients


class Blanks:
    """A tower in DDP, which every rank runs: on a small image where it has none."""

    def __init__(self, model: Any) -> None:
        self.tower = torch.nn.parallel.DistributedDataParallel(model.model.visual)
        self.blank = prepared({"id": 0, "images": 1})

    def __call__(self, images: dict[str, torch.Tensor] | None) -> torch.Tensor:
        given = images or self.blank
        made = self.tower(given["pixel_values"].double(), given["image_grid_thw"]).pooler_output
        return made if images else made[:0]


def train_in_ddp(rank: Rank, taken: list[Any]) -> list[dict[str, torch.Tensor]]:
    return train(rank, taken, in_ddp=True)


def on_one_device(plan: Any) -> dict[str, torch.Tensor]:
    """The gradient of the mean over all supervised tokens of a step."""
    chat = family()
    model = chat.model(SEED).double()
    rows = [chat.row(int(n), images=IMAGES[int(n)]) for n in plan.samples.index]
    total = int(plan.samples.lengths[es.SUPERVISED].sum())
    for row in rows:
        batch = chat.collate([row])
        (model(**batch).loss * int((batch["labels"][:, 1:] != -100).sum()) / total).backward()
    return {
        name: torch.zeros_like(each) if each.grad is None else each.grad
        for name, each in model.named_parameters()
    }


@pytest.mark.parametrize(
    ("sizes", "loop"),
    [
        ({"DP": 2}, train),
        pytest.param({"DP": 4}, train, marks=pytest.mark.slow),
        pytest.param({"DP": 2, "TP": 2}, train, marks=pytest.mark.slow),
        pytest.param({"DP": 4}, train_in_ddp, marks=pytest.mark.slow),
    ],
)
def test_gradients_of_samples_with_0_1_and_20_images_are_those_of_one_device(
    sizes: dict[str, int], loop: Any, tmp_path: Path
) -> None:
    plans, taken = delivered(**sizes)
    ranks = len(taken)
    assert [plan.samples.index.tolist() for plan in plans] == [
        list(range(8 * step, 8 * step + 8)) for step in range(3)
    ]
    encoder = plans[0].subplans["encoder"]
    many = encoder.assignment.bucket[encoder.sample_rows == 0]  # of the sample with 20
    assert len(many) == 20
    assert len(set(many.tolist())) == ranks
    found = run(loop, ranks, taken, folder=tmp_path, within=120)
    for step, plan in enumerate(plans):
        expected = on_one_device(plan)
        tower = [name for name in expected if name.startswith(family().tower)]
        assert any(bool(expected[name].any()) for name in tower) == (step < 2)
        for rank in range(ranks):
            for name, gradient in found[rank][step].items():
                error = float((gradient - expected[name]).abs().max())
                assert error <= 1e-6 * float(expected[name].abs().max()), (step, name)


def test_each_image_goes_to_one_rank_alone_with_its_own_pixels() -> None:
    plans, taken = delivered(DP=4)
    whole = {n: prepared({"id": n, "images": count}) for n, count in enumerate(IMAGES)}
    for step, plan in enumerate(plans):
        encoder = plan.subplans["encoder"]
        first = encoder.sample_rows.searchsorted(encoder.sample_rows)
        numbers = np.arange(len(encoder)) - first
        worked: list[int] = []
        for rank, steps in enumerate(taken):
            part = steps[step][1].subplans["encoder"]
            (images,), (table,), (goes_to,) = part.micro_batches, part.samples, part.goes_to
            rows = encoder.assignment.members(rank, 0)
            worked += rows.tolist()
            assert table == encoder.samples[rows]
            assert (images is None) == (len(rows) == 0)
            for row, route in zip(rows, goes_to, strict=True):
                sample = encoder.sample_rows[row]
                columns = (plan.assignment.bucket, plan.assignment.micro_batch)
                expected = [column[sample] for column in (*columns, plan.assignment.order)]
                assert route.tolist() == expected
            if images is None:
                continue
            patches = images["pixel_values"].split(table.lengths["image"].tolist())
            assert images["image_grid_thw"].prod(dim=1).tolist() == [len(p) for p in patches]
            for row, own in zip(rows, patches, strict=True):
                sample = whole[int(encoder.samples.index[row])]
                sizes = sample["image_grid_thw"].prod(dim=1).tolist()
                assert torch.equal(own, sample["pixel_values"].split(sizes)[numbers[row]])
        assert sorted(worked) == list(range(sum(IMAGES[8 * step : 8 * step + 8])))


def test_images_alone_are_sent_to_the_ranks_that_encode_them() -> None:
    """A loader cuts samples: what a constructor gets of one with 20 images are its own."""
    from evenstep.service.job.source_layout import loader_tasks, members_of
    from evenstep.service.source_loader.staged_steps import StagedStep

    plans, _ = delivered(DP=4)
    plan = plans[0]
    samples = [prepared({"id": n, "images": IMAGES[n]}) for n in range(8)]
    (task,) = loader_tasks(plan, es.SourceLayout.of(("chats",), 1))
    task = pickle.loads(pickle.dumps(task))
    staged = StagedStep()
    asked: list[int] = []

    def take(rows: list[int]) -> list[Any]:
        asked.extend(rows)
        return [samples[row] for row in rows]

    for bucket in range(4):
        staged.stage(task, [("encoder", bucket)], take)
        fetched = staged.buckets["encoder", bucket]
        assert fetched.rows.tolist() == members_of(plan, ("encoder", bucket)).tolist()
        size = sum(each["pixel_values"].nbytes for each in fetched.samples)
        assert len(pickle.dumps(fetched)) < size + 2000 * len(fetched.rows) + 1000
    staged.stage(task, None, take)
    assert sorted(asked) == list(range(8))  # once each, though images and samples part
    assert not staged._samples


def whole(sample: Any) -> int:
    return sum(map(int, sample["image_grid_thw"].prod(dim=1))) if "image_grid_thw" in sample else 0


def test_images_that_were_measured_together_are_refused_with_the_remedy() -> None:
    job = page_job(es.Mesh(DP=2))
    together = {**job.measures.modalities, "image": whole}
    job = replace(job, measures=replace(job.measures, modalities=together))
    with es.start(job, backend="local") as service, pytest.raises(Exception) as caught:
        next(service.client(0))
    assert "image of sample chats[0][0] was measured as one length" in str(caught.value)
    assert "evenstep.batch.patches_of_each" in str(caught.value)


def test_carried_images_are_in_the_state_and_plans_are_those_of_any_loaders() -> None:
    job = replace(page_job(es.Mesh(DP=2)), micro_batches=1, max_tokens=210)
    with es.start(job, backend="local", loaders=striped(job, 2, 3)) as service:
        plans = [to_json(service.plan(step)) for step in range(3)]
        state = json.loads(json.dumps(service.state_dict(1)))
    assert any(state["carried"]["units"]["image"])
    with es.start(job, backend="local") as service:
        assert [to_json(service.plan(step)) for step in range(3)] == plans
    with es.start(job, backend="local", state=state) as service:
        assert [to_json(service.plan(step)) for step in range(1, 3)] == plans[1:]
        assert next(service.client(0))[1].step == 1


def lost(rank: Rank, taken: list[Any]) -> str:
    from evenstep.rebalance import bring_embeddings

    if rank.rank == 1:
        return ""
    part = taken[rank.rank][0][1].subplans["encoder"]
    made = [torch.zeros(int(part.samples[0].lengths["image"].sum()) // 4, 3)]
    with pytest.raises(PeerError, match="a rank died, or did not call bring_embeddings"):
        bring_embeddings(made, part)
    return "told"


def test_a_rank_that_ends_is_an_error_of_the_others(tmp_path: Path) -> None:
    _, taken = delivered(DP=2)
    assert run(lost, 2, taken, folder=tmp_path) == ["told", ""]


def wrong(rank: Rank, taken: list[Any], what: str) -> str:
    from evenstep.rebalance import bring_embeddings

    part = taken[rank.rank][0][1].subplans["encoder"]
    made = [torch.zeros(int(part.samples[0].lengths["image"].sum()) // 4, 3)]
    sizes = None
    if rank.rank == 1:
        if what == "rows":
            made = [made[0][1:]]
        elif what == "width":
            made = [made[0].repeat(1, 2)]
        elif what == "sizes":
            sizes = [[1]]
        elif what == "count":
            made = []
        elif what == "none":
            made = [None]
    try:
        bring_embeddings(made, part, sizes=sizes)
    except SampleError as error:
        return str(error)
    return ""


def test_what_one_rank_does_wrong_all_say(tmp_path: Path) -> None:
    _, taken = delivered(DP=2)
    cases = {
        "": "",
        "rows": "rank 1 of the group has no sizes=, and rows that its images' lengths do not",
        "width": "has embeddings of torch.float32 and width 3, and another has torch.float32 or",
        "sizes": "rank 1 of the group has sizes= that are not one for each image",
        "none": "rank 1 of the group has None for a micro-batch that has images",
        "count": "rank 1 of the group has another number of embeddings than its subplan",
    }
    said = run(_all_wrong, 2, taken, list(cases), folder=tmp_path)
    for each in said:
        for text, (what, expected) in zip(each, cases.items(), strict=True):
            assert expected in text, what
            assert bool(text) == bool(expected), what


def _all_wrong(rank: Rank, taken: list[Any], cases: list[str]) -> list[str]:
    return [wrong(rank, taken, what) for what in cases]
