"""What a loader takes of a trainer's job: the cost of the model, where its policy has none, and
when ranks wait."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import evenstep
from documents import Documents
from evenstep.cost import UNKNOWN_MODEL, VisionLanguageCost
from evenstep.integrations.job_facts import take_cost, waits_at_updates
from evenstep.plan import Policy

DOCUMENTS = Documents(150, longest=64)
SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 64,
}
TOWER = SimpleNamespace(**SIZES, model_type="siglip_vision_model", image_size=28, patch_size=14)
CONFIG = SimpleNamespace(model_type="tiny", **SIZES)
PICTURES = SimpleNamespace(model_type="pictures", text_config=CONFIG, vision_config=TOWER)


class Model(torch.nn.Module):
    def __init__(self, config: Any = CONFIG) -> None:
        super().__init__()
        self.config = config


def loader_of(policy: Policy | None = None, **options: Any) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        DOCUMENTS, policy=policy or evenstep.Even(256), shuffle=True, **options
    )


def rows(loader: evenstep.DataLoader) -> list[Any]:
    return [step.indices for _, step in loader.steps()]


def test_batches_are_those_of_a_policy_that_was_given_the_cost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = loader_of()
    assert rows(loader) != rows(loader_of(evenstep.Even(256, cost=evenstep.cost_of(CONFIG))))
    loader = loader_of()
    caplog.clear()
    with caplog.at_level(logging.INFO, "evenstep"):
        take_cost(loader, [Model(), torch.nn.Linear(2, 2), object()])
    (line,) = caplog.messages
    assert "the cost of tiny follows from its configuration" in line
    given = loader_of(evenstep.Even(256, cost=evenstep.cost_of(CONFIG)))
    assert loader.policy == given.policy
    assert loader.state_dict() == given.state_dict()
    assert rows(loader) == rows(given)


def test_a_measured_cost_begins_with_that_of_the_model() -> None:
    text: Any = evenstep.cost_of(CONFIG)
    loader = loader_of(evenstep.Even(256, cost=evenstep.MeasuredCost()))
    loader.take_cost(Model())
    assert loader.policy.cost == evenstep.MeasuredCost(per_pair=text.per_pair / text.per_token)
    loader = loader_of(evenstep.Even(256, cost=evenstep.MeasuredCost(), max_images=9))
    loader.take_cost(Model(PICTURES))
    both: Any = evenstep.cost_of(PICTURES, vision=True)
    language = evenstep.MeasuredCost(per_token=text.per_token, per_pair=text.per_pair)
    assert loader.policy.cost == replace(both, language=language)


def test_of_several_models_or_none_with_a_configuration_no_cost_is_taken() -> None:
    for objects in ([Model(), Model()], [torch.nn.Linear(2, 2)], [SimpleNamespace(config=CONFIG)]):
        loader = loader_of()
        take_cost(loader, objects)
        assert loader.policy == evenstep.Even(256)


def test_a_loader_that_has_begun_keeps_its_batches() -> None:
    begun, resumed = loader_of(), loader_of()
    steps = begun.steps()
    next(steps)
    resumed.load_state_dict(begun.state_dict())
    for loader in (begun, resumed):
        loader.take_cost(Model())
        assert loader.policy.cost == UNKNOWN_MODEL
    assert [step.indices for _, step in steps] == rows(resumed)


@pytest.mark.parametrize(
    ("limits", "patches_fn", "both"),
    [
        ({}, None, False),
        ({"max_patches": 100}, None, True),
        ({"max_images": 9}, None, True),
        ({"max_patches": 100}, len, False),
    ],
)
def test_the_vision_tower_counts_where_evenstep_counts_patches(
    limits: dict[str, int], patches_fn: Any, both: bool
) -> None:
    counted = evenstep.SampleCounts(patches=patches_fn)
    loader = loader_of(evenstep.Even(256, **limits), length_fn=counted)
    loader.take_cost(Model(PICTURES))
    assert loader.policy.cost == evenstep.cost_of(PICTURES, vision=both)
    assert isinstance(loader.policy.cost, VisionLanguageCost) == both


def accelerated(kind: str, stage: int | None = None, **plugin: Any) -> Any:
    """What is asked of an Accelerator."""
    return SimpleNamespace(
        distributed_type=SimpleNamespace(value=kind),
        gradient_state=SimpleNamespace(plugin_kwargs=plugin),
        state=SimpleNamespace(
            deepspeed_plugin=None if stage is None else SimpleNamespace(zero_stage=stage)
        ),
    )


def strategy(*names: str, stage: int = 0) -> Any:
    """What is asked of a strategy of Lightning: classes' names, from the base on."""
    kind: type = object
    for name in names:
        kind = type(name, (kind,), {"config": {"zero_optimization": {"stage": stage}}})
    return kind()


@pytest.mark.parametrize(
    ("driver", "waits"),
    [
        (accelerated("MULTI_GPU"), True),
        (accelerated("MULTI_CPU"), True),
        (accelerated("MULTI_GPU", sync_each_batch=True), False),
        (accelerated("NO"), False),
        (accelerated("FSDP"), False),
        *((accelerated("DEEPSPEED", stage), stage < 2) for stage in range(4)),
        (strategy("DDPStrategy"), True),
        (strategy("DDPStrategy", "DDPFork"), True),
        (strategy("FSDPStrategy"), False),
        *(
            (strategy("DDPStrategy", "DeepSpeedStrategy", stage=stage), stage < 2)
            for stage in range(4)
        ),
    ],
)
def test_ranks_wait_at_updates_where_gradients_are_whole_and_averaged_once(
    driver: Any, waits: bool
) -> None:
    assert waits_at_updates(driver, [torch.nn.Linear(2, 2), object()]) == waits


def test_ranks_that_gather_weights_wait_in_every_step() -> None:
    sharded = torch.nn.Linear(2, 2)
    sharded.weight.full_tensor = lambda: None  # type: ignore[attr-defined]  # as of DTensor
    assert not waits_at_updates(accelerated("MULTI_GPU"), [sharded])


def test_groups_are_made_even_by_update_but_not_once_a_pass_has_begun() -> None:
    loader, begun = (loader_of(accumulate=2) for _ in range(2))
    next(begun.steps())
    for each in (loader, begun):
        each.take_sync()
    assert [each.policy.sync for each in (loader, begun)] == ["update", "step"]
    assert rows(loader) == rows(loader_of(evenstep.Even(256, sync="update"), accumulate=2))
