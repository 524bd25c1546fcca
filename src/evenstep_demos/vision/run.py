"""``evenstep demo-vision`` from beginning to end, in the parent process."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from evenstep.cli.output import note
from evenstep_demos.text.budget import TrainingOptions
from evenstep_demos.text.run import compare
from evenstep_demos.text.task import Task
from evenstep_demos.vision.collate import Collate, processor
from evenstep_demos.vision.crops import PHOTOGRAPHS, Crops
from evenstep_demos.vision.model import VisionLanguageModel, cost

_MOST, _HELD_OUT = 1600, 128  # rows


def run_vision_demo(options: TrainingOptions, *, out: Path, as_json: bool) -> None:
    """Draws crops and trains; see `evenstep_demos.text.run.compare`.

    Raises:
        RankFailedError: a rank failed; no process is left.
        ImportError: something of ``evenstep[demo-vision]`` is not installed.
    """
    begin = time.perf_counter()
    most = options.samples or _MOST
    aside = min(_HELD_OUT, most)
    first = options.seed * 10**6
    note(f"counting the tokens of {most + aside:,} rows")
    collate = Collate(processor())
    task = Task.measured(
        Crops(range(first + aside, first + aside + most)),
        Crops(range(first, first + aside)),
        collate=collate,
        model=_model,
        cost=cost(len(collate.processor.tokenizer)),
    )
    facts = {
        "name": "crops of photographs of scikit-image",
        "photographs": len(PHOTOGRAPHS),
        "to_train_on": most,
        "held_out": aside,
    }
    samples = "rows of images and text"
    compare(options, task, begin=begin, facts=facts, samples=samples, out=out, as_json=as_json)


def _model(seed: int) -> VisionLanguageModel:
    torch.manual_seed(seed)
    return VisionLanguageModel(processor())
