"""Four real ranks, each with a service of its own in its process: no Ray is needed for this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

import evenstep.service as es
from evenstep.strategy import LoadingPlan
from evenstep_demos.ranks import run_ranks
from evenstep_demos.service.options import CONTEXT, DATA, RANKS, ServiceDemoOptions
from evenstep_demos.service.sources import StoredSources
from evenstep_demos.service.trainer import average_gradients
from evenstep_demos.service.vision.pictures import picture_sources
from evenstep_demos.service.vision.strategies import PICTURE, VISION_RUNS, pictured, vision_job
from evenstep_demos.service.vision.trainer import VisionModel, compute_vision


def gradients_of_ranks(
    send: Callable[[Any], None], options: ServiceDemoOptions, stored: StoredSources
) -> None:
    torch.set_num_threads(1)
    context = init_device_mesh("cpu", (DATA, CONTEXT), mesh_dim_names=("dp", "cp"))["cp"]
    for run in VISION_RUNS:
        model = model_of(options)
        with es.start(vision_job(stored, options, run), backend="local") as service:
            micro_batches, step = next(service.client(dist.get_rank()))
            _, _, encoded = compute_vision(model, micro_batches, step, context)
            average_gradients(model.parameters())
        found = {name: each.grad.numpy() for name, each in model.named_parameters()}  # type: ignore[union-attr]
        send((run, dist.get_rank(), found, sum(len(table) for table in encoded)))


def model_of(options: ServiceDemoOptions) -> VisionModel:
    torch.manual_seed(options.seed)
    return VisionModel()


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows = [x.transpose(0, 1)[None] for x in (q, k, v)]
    return F.scaled_dot_product_attention(*rows, is_causal=True)[0].transpose(0, 1)


def gradients_of_one_process(
    options: ServiceDemoOptions, stored: StoredSources, plan: LoadingPlan
) -> dict[str, torch.Tensor]:
    """Sample by sample: nothing is packed, cut or sent."""
    model = model_of(options)
    losses, tokens = [], 0
    for row in range(len(plan.samples)):
        sample = pictured(stored.row(plan.samples.identity(row)))
        ids = torch.from_numpy(sample["input_ids"].copy()).long()
        labels = torch.from_numpy(sample["labels"].copy()).long()
        features = places = None
        if sample["pixel_values"] is not None:
            grid = torch.from_numpy(sample["image_grid_thw"])
            features = model.encoder(torch.from_numpy(sample["pixel_values"]), grid)
            places = (ids == PICTURE).nonzero()[:, 0]
        logits = model.backbone(ids, torch.arange(len(ids)), causal, features, places)
        losses.append(F.cross_entropy(logits[:-1], labels[1:], reduction="sum"))
        tokens += int((labels[1:] >= 0).sum())
    (torch.stack(losses).sum() / tokens).backward()
    return {name: each.grad for name, each in model.named_parameters()}  # type: ignore[misc]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> ServiceDemoOptions:
    return ServiceDemoOptions(
        vision=True, samples_per_step=12, max_length=128, seed=1, out=tmp_path_factory.mktemp("out")
    )


def test_gradients_of_both_modules_are_those_of_one_process(options: ServiceDemoOptions) -> None:
    stored = picture_sources(options)
    told: list[Any] = []
    run_ranks(gradients_of_ranks, RANKS, (options, stored), told.append)
    assert sorted({(run, rank) for run, rank, *_ in told}) == sorted(
        (run, rank) for run in VISION_RUNS for rank in range(RANKS)
    )
    for run in VISION_RUNS:
        with es.start(vision_job(stored, options, run), backend="local") as service:
            plan = service.plan(0)
        assert plan is not None
        assert not len(plan.carried)
        expected = gradients_of_one_process(options, stored, plan)
        encoded = 0
        for name, rank, found, count in told:
            if name != run:
                continue
            encoded += count
            for parameter, gradient in found.items():
                same = torch.allclose(
                    torch.from_numpy(gradient), expected[parameter], rtol=1e-3, atol=1e-6
                )
                assert same, f"{run}, rank {rank}: {parameter}"
        assert encoded == int((plan.samples.lengths["image"] > 0).sum()) > RANKS
    assert all(expected[name].abs().max() > 1e-5 for name in expected)
