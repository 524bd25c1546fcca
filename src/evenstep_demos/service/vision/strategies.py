"""Samples with pictures, and the strategies that the vision demo compares.

A picture is cut into cells of 28 x 28 pixels, each of which is one token of the backbone and four
patches of 14 x 14 pixels for the encoder. Patches lie cell by cell. Planners and loaders run this,
so it needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import evenstep.service as es
from evenstep.batch.count_media import patches_of
from evenstep.batch.measure import length_of
from evenstep.cost import GroupShapes, TransformerCost
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep_demos.service.options import ServiceDemoOptions
from evenstep_demos.service.sources import StoredSources
from evenstep_demos.service.strategies import BYTES, HIDDEN, SHAPE, common, gpt_cost

PICTURE = BYTES
"""The token that the embedding of a cell replaces; tokens below it are bytes."""

VOCABULARY = BYTES + 1

PATCH = 14 * 14 * 3
"""Numbers in a patch."""

CELLS = 144
"""Cells of a picture at most: larger ones are scaled down."""

_SIDE = 28
_BACKBONE = gpt_cost(VOCABULARY)
_ENCODER = TransformerCost.vision(**SHAPE, ffn_size=4 * HIDDEN)
_EMBEDDING = 3 * 2 * PATCH * HIDDEN  # operations of a patch before the first layer
_TEXT = ("input_ids", "labels")


def cells_of(width: int, height: int) -> tuple[int, int]:
    """(rows, columns) of the cells that cover a picture, at least one each. A picture of more than
    `CELLS` is scaled down to about as many, in the same proportion."""
    rows, columns = math.ceil(height / _SIDE), math.ceil(width / _SIDE)
    if rows * columns > CELLS:
        scale = math.sqrt(CELLS / (rows * columns))
        rows, columns = max(1, int(rows * scale)), max(1, int(columns * scale))
    return min(rows, CELLS), min(columns, CELLS)


def pictured(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample with random pixels, of a ``size`` that is (width, height) or None, a ``text`` and a
    ``seed``. Placeholders of its cells come first, and are not supervised."""
    text = np.frombuffer(row["text"].encode(), np.uint8).astype(np.int32)
    if row["size"] is None:
        return {"input_ids": text, "labels": text, "image_grid_thw": None, "pixel_values": None}
    rows, columns = cells_of(*row["size"])
    cells = rows * columns
    draw = np.random.default_rng(row["seed"])
    return {
        "input_ids": np.concatenate([np.full(cells, PICTURE, np.int32), text]),
        "labels": np.concatenate([np.full(cells, -100, np.int32), text]),
        "image_grid_thw": np.array([[1, 2 * rows, 2 * columns]]),
        "pixel_values": draw.integers(0, 256, (4 * cells, PATCH), np.uint8),
    }


def supervised(sample: Mapping[str, Any]) -> int:
    """Supervised tokens in a packed row, where the first of a document is not predicted."""
    labels: Sequence[int] = sample["labels"][1:]
    return int((np.asarray(labels) >= 0).sum())


def text_alone(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A packed row, whose pictures are in the encoder's subplan."""
    from evenstep.batch.pack import PackCollator  # needs torch, which planners run without

    return PackCollator()([{name: sample[name] for name in _TEXT} for sample in samples])


def backbone_cost(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Cost of samples by their tokens, in floating-point operations."""
    return _per_sample(_BACKBONE, lengths)


def encoder_cost(patches: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Cost of samples by the patches of their picture, in floating-point operations."""
    return _per_sample(_ENCODER, patches) + _EMBEDDING * patches


def _per_sample(cost: TransformerCost, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    ones = np.ones_like(lengths)
    return cost(GroupShapes(ones, lengths, lengths, lengths * lengths), packed=True)


def vanilla(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals pictures to all ranks and rows to data-parallel groups, as they come."""
    encoder = graph.modality("image").distribute("WORLD").cost(encoder_cost)
    backbone = graph.modality("text").mix().distribute("DP").cost(backbone_cost)
    return backbone.plan(subplans={"encoder": encoder})


def apart(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals both by their cost: pictures by that of the encoder, rows by that of the backbone."""
    encoder = graph.modality("image").distribute("WORLD").cost(encoder_cost)
    backbone = graph.modality("text").mix().distribute("DP").cost(backbone_cost)
    return backbone.balance("karmarkar_karp").plan(
        subplans={"encoder": encoder.balance("karmarkar_karp")}
    )


VISION_RUNS = {"vanilla": vanilla, "apart": apart}
"""By the name of each run, in the order in which they are made."""


def vision_job(stored: StoredSources, options: ServiceDemoOptions, run: str) -> es.Job:
    """The job of a run; runs differ only in the strategy. All samples of a step are placed,
    whatever their length."""
    return es.Job(
        sources=stored.sources(pictured),
        strategy=VISION_RUNS[run],
        draws=es.DrawOptions(
            schedule={name: float(count) for name, count in stored.samples.items()},
            samples_per_step=options.samples_per_step,
        ),
        collate=text_alone,
        measures=es.MeasureOptions(
            modalities={"text": length_of, "image": patches_of},
            supervised=supervised,
            loss_reduction="sum",
        ),
        **common(options),
    )
