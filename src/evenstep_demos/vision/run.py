"""The demo from beginning to end, in the parent process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from evenstep_demos.text.options import TrainingOptions
from evenstep_demos.text.progress import Display
from evenstep_demos.text.result import DemoResult
from evenstep_demos.text.task import Task
from evenstep_demos.text.train_both import train_both
from evenstep_demos.vision.collate import Collate, processor
from evenstep_demos.vision.crops import PHOTOGRAPHS, Crops
from evenstep_demos.vision.model import VisionLanguageModel, cost

_MOST, _HELD_OUT = 1600, 128  # rows


@dataclass(frozen=True, kw_only=True)
class VisionDemoOptions(TrainingOptions):
    """Options of ``evenstep demo-vision``."""

    out: Path = Path("out/demo-vision")


def run_vision_demo(options: VisionDemoOptions, display: Display) -> DemoResult:
    """Draws crops, trains, and writes ``step_times.png`` and ``result.json``.

    Raises:
        RankFailedError: a rank failed; no process is left.
        ImportError: something of ``evenstep[demo-vision]`` is not installed.
    """
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    most = options.samples or _MOST
    aside = min(_HELD_OUT, most)
    first = options.seed * 10**6
    training = Crops(range(first + aside, first + aside + most))
    held_out = Crops(range(first, first + aside))
    display.note(f"counting the tokens of {most + aside:,} rows")

    collate = Collate(processor())
    model_cost = cost(len(collate.processor.tokenizer))
    task = Task.measured(training, held_out, collate=collate, model=_model, cost=model_cost)
    facts = {
        "name": "crops of photographs of scikit-image",
        "photographs": len(PHOTOGRAPHS),
        "to_train_on": most,
        "held_out": aside,
    }
    samples = "rows of images and text"
    return train_both(options, task, display, begin=begin, facts=facts, samples=samples)


def _model(seed: int) -> VisionLanguageModel:
    torch.manual_seed(seed)
    return VisionLanguageModel(processor())
