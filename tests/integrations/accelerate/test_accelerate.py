"""Loops of one's own with Accelerate: samples, gradients, losses, checkpoints; misuse is told."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("accelerate")

import accelerate
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from launched_rank import as_rank
from ranks import Rank, run
from script_jobs import torchrun
from tiny_model import TinyModel
from torch.optim.lr_scheduler import LambdaLR
from update_checks import (
    DOCUMENTS,
    Update,
    check_epoch,
    check_killed,
    gradient_of,
    loader_of,
    sized_loader,
)

import evenstep
from documents import Documents
from evenstep.integrations import accelerate as even
from evenstep.tools.doctor import software

pytestmark = pytest.mark.timeout(120)


def accelerator_of(rank: Rank | None, **options: Any) -> Accelerator:
    if rank is not None:
        as_rank(rank)
        # A rank is forked, perhaps from a process in which another test has made one.
        AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=True, **options)
    assert accelerator.num_processes == (rank.world_size if rank is not None else 1)
    return accelerator


def train(
    rank: Rank | None,
    accumulate: int,
    *,
    epochs: int = 1,
    save: Path | None = None,
    load: Path | None = None,
    sized: bool = False,
    **options: Any,
) -> list[list[Update]]:
    """Updates of each epoch.

    Args:
        save: where a checkpoint is saved after two updates; then it waits for ever.
        load: the checkpoint to begin with.
        sized: the loader chooses the steps of an update.
    """
    accelerator = accelerator_of(rank, gradient_accumulation_steps=accumulate, **options)
    model: Any = TinyModel()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = sized_loader() if sized else loader_of()
    model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader)
    if load is not None:
        accelerator.load_state(str(load))
    done = []
    for _ in range(loader.epoch, epochs):
        done.append([Update()])
        for batch in loader:
            step = loader.step
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                update = done[-1][-1]
                update.samples += step.indices
                update.steps += 1
                share = step.loss_scale * loss.detach().nan_to_num()
                update.loss += accelerator.reduce(share, "mean").item()
                assert accelerator.sync_gradients == step.ends_update
                if accelerator.sync_gradients:
                    update.gradient = gradient_of(model)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                done[-1].append(Update())
                if save is not None and len(done[-1]) == 3:
                    accelerator.save_state(str(save))
                    rank.say("saved")
                    rank.heard(rank.rank, "never", within=60)
        assert done[-1].pop().steps == 0
    return done


@pytest.mark.parametrize("accumulate", [4, None])
def test_every_update_on_two_ranks_is_that_of_one_batch(
    tmp_path: Path, accumulate: int | None
) -> None:
    job = partial(train, sized=accumulate is None)  # then the loader chooses
    ranks = run(job, 2, accumulate or 1, folder=tmp_path, within=60)
    losses = check_epoch(
        [updates for (updates,) in ranks],
        accumulate or 4,
        max_norm=1.0,
        waits_at_updates=accumulate is not None,
    )
    for (updates,) in ranks:
        assert [update.loss for update in updates] == pytest.approx(losses, rel=1e-5)


VALIDATED = Documents(37, longest=64, prompts=True, seed=5)


def followed(rank: Rank) -> Any:
    """Rates and samples of two epochs' updates, and a loss after them."""
    accelerator = accelerator_of(rank)
    model, loader = TinyModel(), loader_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 2 * loader.epoch_samples
    # Accelerate steps a scheduler once for each rank.
    scheduler = LambdaLR(optimizer, lambda step: 1 - step / 1000)
    evenstep.follow_progress(scheduler, lambda: loader.samples / total, steps=1000)
    evaluated = evenstep.DataLoader(VALIDATED, policy=evenstep.Even(128))
    model, optimizer, scheduler, batches, evaluated = even.prepare(
        accelerator, model, optimizer, scheduler, loader, evaluated
    )
    rates, samples = [], []
    for _ in range(2):
        for batch in batches:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                rates.append(optimizer.param_groups[0]["lr"])
                samples.append(batches.step.global_samples)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    sums = torch.zeros(2, dtype=torch.float64)
    with torch.no_grad():
        for batch in evaluated:
            loss, step = model(**batch).loss, evaluated.step
            if not step.filler:
                sums += torch.tensor([loss * step.supervised_tokens, step.supervised_tokens])
    sums = accelerator.reduce(sums, "sum")
    whole = accelerator.unwrap_model(model)(**evenstep.PadCollator()([*VALIDATED])).loss
    assert (sums[0] / sums[1]).item() == pytest.approx(whole.item(), rel=1e-6)
    assert sum(samples) == total
    done = itertools.accumulate(samples[:-1], initial=0)
    assert rates == pytest.approx([0.1 * (1 - each / total) for each in done], abs=1e-12)
    assert optimizer.param_groups[0]["lr"] == 0.0
    return rates


@pytest.mark.integrations
def test_rates_end_with_the_data_and_an_evaluation_is_of_all_tokens(tmp_path: Path) -> None:
    one, other = run(followed, 2, folder=tmp_path, within=60)
    assert one == other


@pytest.mark.integrations
@pytest.mark.timeout(800)
def test_the_example_goes_on_where_it_stopped(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "examples" / "accelerate_loop.py"
    arguments = ["--folder", str(tmp_path / "saved"), "--stop-after", "2"]
    # One rank makes twice the steps in an update, so the two before count as one.
    for ranks, first in ((2, 0), (1, 1)):
        said = torchrun(ranks, script, *arguments, log=tmp_path)
        assert re.findall(r"epoch 0 update (\d+)", said) == [str(first), str(first + 1)]


def resumed(rank: Rank, saved: Path) -> list[list[Update]]:
    return train(rank, 3, epochs=2, load=saved)


def hanging(rank: Rank, saved: Path) -> None:
    train(rank, 3, epochs=2, save=saved)


def uninterrupted(rank: Rank) -> list[list[Update]]:
    return train(rank, 3, epochs=2)


@pytest.mark.integrations
def test_a_killed_job_goes_on_where_it_saved(tmp_path: Path) -> None:
    check_killed(tmp_path, uninterrupted, hanging, resumed)


@pytest.fixture(autouse=True)
def _forgotten_state() -> Iterator[None]:
    """Accelerate keeps what the first accelerator of a process was given."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


@pytest.fixture
def accelerator() -> accelerate.Accelerator:
    return accelerator_of(None)


@pytest.fixture
def accumulating() -> accelerate.Accelerator:
    return accelerator_of(None, gradient_accumulation_steps=3)


def loop(accelerator: Any, loader: Any, backward: Any = None, *, steps: int = 10) -> None:
    model, optimizer = accelerator.prepare(
        model := TinyModel(), torch.optim.SGD(model.parameters(), lr=0.1)
    )
    for number, batch in enumerate(loader):
        with accelerator.accumulate(model):
            (backward or accelerator.backward)(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        if number + 1 == steps:
            break


def test_attention_that_is_slow_where_shapes_vary_is_told_of_once(
    accelerator: accelerate.Accelerator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loader = even.prepare(accelerator, loader_of())
    monkeypatch.setattr(software, "plans_each_shape", lambda device: device.type == "cpu")
    software.warn_of_plans.cache_clear()
    try:
        for _ in range(2):
            loop(accelerator, loader, steps=2)
    finally:
        software.warn_of_plans.cache_clear()
    assert len([said for said in caplog.messages if "enable_cudnn_sdp(False)" in said]) == 1


def test_a_loss_that_accelerate_does_not_see_stops_the_loop(
    accumulating: accelerate.Accelerator,
) -> None:
    loader = even.prepare(accumulating, loader_of())

    def backward(loss: torch.Tensor) -> None:
        (torch.Tensor.backward if loader.step.step == 1 else accumulating.backward)(loss)

    with pytest.raises(evenstep.ConfigurationError, match="loss of step 1 was not scaled"):
        loop(accumulating, loader, backward)


def test_an_update_that_a_loop_left_is_told(accumulating: accelerate.Accelerator) -> None:
    loader = even.prepare(accumulating, loader_of())
    loop(accumulating, loader, steps=4)
    with pytest.raises(evenstep.ConfigurationError, match="in the middle of an update of 3"):
        loop(accumulating, loader)


def test_a_checkpoint_in_the_middle_of_an_update_warns(
    accumulating: accelerate.Accelerator, tmp_path: Path
) -> None:
    batches = iter(even.prepare(accumulating, loader_of()))
    for _ in range(3):
        next(batches)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulating.save_state(str(tmp_path / "whole"))
    next(batches)
    with pytest.warns(UserWarning, match="after step 3, in the middle of an update"):
        accumulating.save_state(str(tmp_path / "part"))


def test_what_accelerate_would_make_of_a_loader_is_refused(
    accelerator: accelerate.Accelerator,
) -> None:
    loader = even.prepare(accelerator, loader_of())
    assert accelerator.prepare(loader) is loader
    assert len(loader.dataset) == len(DOCUMENTS)
    with pytest.raises(AttributeError, match="skip_first_batches is not needed"):
        accelerate.skip_first_batches(loader, 3)
    with pytest.raises(evenstep.ConfigurationError, match=r"among DataLoader; accelerator\.prep"):
        even.prepare(accelerator, torch.utils.data.DataLoader(DOCUMENTS))
    policy = evenstep.WorkloadPacking(128, micro_batches=3)
    with pytest.raises(evenstep.ConfigurationError, match="makes 3 micro-batches of a step"):
        even.prepare(accelerator, evenstep.DataLoader(DOCUMENTS, policy=policy))


def test_a_loader_that_is_prepared_without_the_integration_warns(
    accelerator: accelerate.Accelerator,
) -> None:
    loader = accelerator.prepare(loader_of())
    with pytest.warns(UserWarning, match=r"loader = even\.prepare\(accelerator, model, optim"):
        next(iter(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(loader.steps()))
