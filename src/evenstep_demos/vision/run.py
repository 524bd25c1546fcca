"""``evenstep demo-vision`` from beginning to end, in the parent process."""

from __future__ import annotations

from pathlib import Path

import torch

from evenstep.cli.output import note
from evenstep_demos.text.budget import TrainingOptions
from evenstep_demos.text.run import compare
from evenstep_demos.text.task import Task
from evenstep_demos.vision.collate import Collate, processor
from evenstep_demos.vision.crops import PHOTOGRAPHS, Crops
from evenstep_demos.vision.model import VisionLanguageModel, cost

_HELD_OUT = 128  # rows


def run_vision_demo(options: TrainingOptions, *, out: Path, as_json: bool) -> None:
    """Draws crops and trains; see `evenstep_demos.text.run.compare`.

    Raises:
        RankFailedError: a rank failed; no process is left.
        ImportError: something of ``evenstep[demo-vision]`` is not installed.
    """
    begin = options.seed * 10**6
    end = begin + _HELD_OUT + options.samples
    note(f"counting the tokens of {end - begin:,} rows")
    collate = Collate(processor())
    task = Task.measured(
        Crops(range(begin + _HELD_OUT, end)),
        Crops(range(begin, begin + _HELD_OUT)),
        collate=collate,
        model=_model,
        cost=cost(len(collate.processor.tokenizer)),
    )
    facts = {
        "name": "crops of photographs of scikit-image",
        "photographs": len(PHOTOGRAPHS),
        "held_out": _HELD_OUT,
    }
    samples = "rows of images and text"
    compare(options, task, facts=facts, samples=samples, out=out, as_json=as_json)


def _model(seed: int) -> VisionLanguageModel:
    torch.manual_seed(seed)
    return VisionLanguageModel(processor())
