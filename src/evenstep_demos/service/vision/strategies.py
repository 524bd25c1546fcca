"""The strategies that the vision demo compares. Planners and loaders run this: it needs no torch.

The modality "cost" is the cost of a sample in both modules, as one number, by which the joint
strategy balances. All samples of a step are placed, whatever their length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import evenstep.service as es
from evenstep.batch.count_media import patches_of
from evenstep.batch.measure import length_of
from evenstep.cost import GroupShapes, TransformerCost
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep_demos.service.options import CONTEXT, DATA, ServiceDemoOptions
from evenstep_demos.service.sizes import HIDDEN, SHAPE, gpt_cost
from evenstep_demos.service.stored import StoredSources
from evenstep_demos.service.vision.collate import text_alone, text_and_pictures
from evenstep_demos.service.vision.encode import PATCH, PICTURE, pictured, supervised

ENCODER = "encoder"
"""Name of the subplan."""

VOCABULARY = PICTURE + 1

_BACKBONE = gpt_cost(VOCABULARY)
_ENCODER = TransformerCost.vision(**SHAPE, ffn_size=4 * HIDDEN)
_EMBEDDING = 3 * 2 * PATCH * HIDDEN  # operations of a patch before the first layer
_UNIT = 10**6
_BUFFER = 32


def backbone_cost(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Cost of samples by their tokens, in floating-point operations."""
    return _per_sample(_BACKBONE, lengths)


def encoder_cost(patches: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Cost of samples by the patches of their picture, in floating-point operations."""
    return _per_sample(_ENCODER, patches) + _EMBEDDING * patches


def _per_sample(cost: TransformerCost, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    ones = np.ones_like(lengths)
    return cost(GroupShapes(ones, lengths, lengths, lengths * lengths), packed=True)


def cost_of(sample: Mapping[str, Any]) -> int:
    """Cost in both modules, in millions of operations."""
    tokens, patches = np.array([length_of(sample)]), np.array([patches_of(sample)])
    return int((backbone_cost(tokens) + encoder_cost(patches))[0]) // _UNIT + 1


def vanilla(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals samples as they come. Each group encodes its own pictures."""
    return graph.modality("cost").mix().distribute("DP").plan()


def jointly(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Balances the cost of both modules together. Each group encodes its own pictures."""
    return graph.modality("cost").mix().distribute("DP").balance("karmarkar_karp").plan()


def apart(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Balances pictures over all ranks, and rows over data-parallel groups."""
    encoder = graph.modality("image").distribute("WORLD").cost(encoder_cost)
    backbone = graph.modality("text").mix().distribute("DP").cost(backbone_cost)
    return backbone.balance("karmarkar_karp").plan(
        subplans={ENCODER: encoder.balance("karmarkar_karp")}
    )


VISION_RUNS = {"vanilla": vanilla, "jointly": jointly, "apart": apart}
"""By the name of each run, in the order in which they are made."""


def vision_job(stored: StoredSources, options: ServiceDemoOptions, run: str) -> es.Job:
    """The job of a run; runs differ in the strategy, and in where pictures are sent."""
    return es.Job(
        sources=stored.sources(pictured),
        mesh=es.Mesh(DP=DATA, CP=CONTEXT),
        strategy=VISION_RUNS[run],
        draws=es.DrawOptions(
            schedule={name: float(count) for name, count in stored.samples.items()},
            samples_per_step=options.sample_count,
        ),
        micro_batches=options.micro_batches,
        seed=options.seed,
        collate=text_alone if run == "apart" else text_and_pictures,
        measures=es.MeasureOptions(
            modalities={"text": length_of, "image": patches_of, "cost": cost_of},
            supervised=supervised,
            loss_reduction="sum",
        ),
        memory=es.MemoryOptions(buffer_size=_BUFFER, plans_kept=options.step_count + 8),
    )
