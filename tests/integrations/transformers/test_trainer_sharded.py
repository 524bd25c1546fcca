"""Parameters on several ranks: FSDP2 and DeepSpeed under Trainer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import transformers
from script_jobs import run_script
from sharded_on_cpu import ways
from tiny_trainer import TellingLlama, documents
from update_checks import alone

pytestmark = [
    pytest.mark.integrations,
    pytest.mark.timeout(1000),
    pytest.mark.skipif(transformers.__version__ < "5", reason="written with Transformers 5"),
]
SCRIPT = Path(__file__).with_name("sharded_job.py")
N = len(documents())
SAVED = 2  # updates before the checkpoint


@pytest.mark.parametrize(
    ("way", "accumulate", "mean"),
    ways(
        ("fsdp2", 1, False),
        ("fsdp2", 3, True),
        ("loaded", 3, False),
        ("zero2", 1, True),
        ("zero2", 3, False),
        ("zero3", 1, False),
        ("zero3", 3, True),
    ),
)
def test_every_update_is_that_of_one_batch(
    tmp_path: Path, way: str, accumulate: int, mean: bool
) -> None:
    told = run_script(SCRIPT, 2, tmp_path, way=way, accumulate=accumulate, mean=mean)
    assert told[0] == told[1]
    samples, gradients, losses = (told[0][name] for name in ("samples", "gradients", "losses"))
    assert sorted(i for update in samples for i in update) == list(range(N))
    model = TellingLlama()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for update, gradient, loss in zip(samples, gradients, losses, strict=True):
        expected_loss, expected = alone(model, documents(), update)
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        assert (torch.tensor(gradient) - expected).norm() < 1e-5 * expected.norm()
        apply(expected, model)
        optimizer.step()


def apply(gradient: torch.Tensor, model: torch.nn.Module) -> None:
    sizes = [p.numel() for p in model.parameters()]
    for parameter, part in zip(model.parameters(), gradient.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter).clone()


@pytest.mark.parametrize("way", ways(("fsdp2",), ("zero2",), ("zero3",)))
def test_a_killed_job_goes_on_where_it_was(tmp_path: Path, way: str) -> None:
    options = {"way": way, "num_train_epochs": 2, "save_strategy": "steps", "save_steps": SAVED}
    folders = [tmp_path / name for name in ("whole", "killed", "more")]
    for folder in folders:
        folder.mkdir()
    whole = run_script(SCRIPT, 2, folders[0], **options)[0]
    run_script(SCRIPT, 2, folders[1], dies=True, stop=SAVED + 1, **options)
    shutil.copytree(folders[1], folders[2], dirs_exist_ok=True)
    again = run_script(SCRIPT, 2, folders[1], **options, resume=True)[0]
    assert again["samples"] == whole["samples"][SAVED:]
    assert again["gradients"] == whole["gradients"][SAVED:]
    assert again["epoch"] == whole["epoch"] == 2.0
    if way != "fsdp2":  # DeepSpeed's own checkpoints are for as many ranks
        return
    more = run_script(SCRIPT, 3, folders[2], **options, resume=True)[0]
    before = [i for update in whole["samples"][:SAVED] for i in update]
    rest = [i for update in more["samples"] for i in update]
    assert sorted(before + rest) == sorted(2 * list(range(N)))
