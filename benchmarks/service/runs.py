"""Plans of many steps, and how uneven each makes the ranks of a step.

A case is a way to plan. All cases plan the same samples, except those that find no room in a step
and go first in the next one; so times are compared per unit of cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.lib.report import Spread, progress
from benchmarks.service.corpora import ENCODER, LLAMA_12B, UNIT, Corpus
from evenstep.cost import TransformerCost
from evenstep.mixture.sample_table import SampleTable
from evenstep.strategy import Assignment, DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

MICRO_BATCHES = 4
TP = 2
"""Peers that share a data-parallel rank's backbone, where there is an encoder."""
ROOM = 5, 4
"""Limit of a micro-batch over the tokens drawn for it, as a fraction."""
ARRIVAL, IN_ORDER = "as they arrive", "in order, by tokens"
BACKBONE, HYBRID = "backbone, greedy inter", "separately, greedy inter"
"""What the paper calls backbone balance and hybrid balance."""
Loads = dict[str, tuple[float, float]]
"""By name, the largest load in a step, for which ranks wait, and the mean."""


@dataclass(frozen=True)
class Tally:
    """All steps of a case, under all seeds."""

    seeds: list[dict[str, list[tuple[float, float]]]] = field(default_factory=list)
    """For each seed, by measure, for each step: the largest, or time, and the mean."""

    def over_time(self, measure: str) -> Spread:
        """For each seed, the sum over steps of the largest over that of the mean."""
        return Spread.of([_ratio(of[measure]) for of in self.seeds])

    def speed_up(self, base: Tally, measure: str) -> Spread:
        """Time per unit of cost in the other case, over that in this one."""
        pairs = zip(base.seeds, self.seeds)
        return Spread.of([_ratio(before[measure]) / _ratio(of[measure]) for before, of in pairs])


def _ratio(steps: Sequence[tuple[float, float]]) -> float:
    most, mean = np.sum(steps, axis=0).tolist()
    return float(most / mean)


Case = Callable[[DGraph], tuple[Loads, SampleTable]]
"""From the samples of a step to its loads, and to the samples that found no room."""


def run(
    corpus: Corpus, cases: dict[str, Case], sizes: dict[str, int], steps: int, seeds: Sequence[int]
) -> dict[str, Tally]:
    """Runs cases over steps, each case with its own samples carried from step to step.

    Args:
        sizes: of the mesh, with its data-parallel ranks as "DP".
    """
    tree = ClientPlaceTree.of(sizes)
    tallies = {name: Tally() for name in cases}
    for seed in seeds:
        found: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in cases}
        carried: dict[str, SampleTable] = {}
        tokens = sizes["DP"] * MICRO_BATCHES * corpus.context
        for step, samples in enumerate(corpus.steps(steps, tokens, seed)):
            for name, case in cases.items():
                progress(f"{corpus.name}, seed {seed}, step {step}: {name}")
                graph = DGraph.of(
                    samples,
                    tree,
                    step=step,
                    micro_batches=MICRO_BATCHES,
                    max_tokens=corpus.context * ROOM[0] // ROOM[1],
                    carried=carried.get(name),
                )
                loads, carried[name] = case(graph)
                for measure, value in loads.items():
                    found[name].setdefault(measure, []).append(value)
        for name, of in found.items():
            tallies[name].seeds.append(of)
    return tallies


def _balanced(graph: DGraph, method: str | None, level: str | None) -> DGraph:
    return graph if method is None or level is None else graph.balance(method, level)


def _unlimited(graph: DGraph) -> LoadingPlan:
    """A plan in which all samples have room, to ask for its order of arrival."""
    assert graph.samples is not None
    tokens = sum(int(column.sum()) for column in graph.samples.lengths.values())
    return graph.balance("greedy", max_tokens=max(tokens, 1)).plan()


# Text


def text_cases() -> dict[str, Case]:
    return {
        ARRIVAL: _by_arrival,
        IN_ORDER: _text(None, None),
        "greedy, inter": _text("greedy", "inter"),
        "greedy, both": _text("greedy", "both"),
    }


def _text_graph(graph: DGraph) -> DGraph:
    return graph.modality("text").distribute("DP").cost(LLAMA_12B)


def _text(method: str | None, level: str | None) -> Case:
    def case(graph: DGraph) -> tuple[Loads, SampleTable]:
        plan = _balanced(_text_graph(graph), method, level).plan()
        return _of_text(plan.cost_after), plan.carried

    return case


def _by_arrival(graph: DGraph) -> tuple[Loads, SampleTable]:
    plan = _unlimited(_text_graph(graph))
    return _of_text(plan.cost_before), plan.carried


def _of_text(loads: npt.NDArray[Any]) -> Loads:
    """Two ways to wait: at the end of the step, and each micro-batch for the largest of all."""
    ranks = loads.sum(axis=1)
    return {
        "ranks": (float(ranks.max()), float(ranks.mean())),
        "micro-batches": (float(loads.max()), float(loads.mean())),
    }


# Image and text


def papers_cases(backbone: TransformerCost) -> dict[str, Case]:
    """What OVERLORD's Figure 12 compares."""
    return {
        IN_ORDER: _vision(None, None, None, backbone),
        BACKBONE: _vision("greedy", "inter", None, backbone),
        HYBRID: _vision("greedy", "inter", "greedy", backbone),
    }


def _vision_graph(graph: DGraph, backbone: TransformerCost) -> DGraph:
    return graph.modality("text", "image").distribute("DP").cost(backbone)


def _vision(
    method: str | None, level: str | None, encoder: str | None, model: TransformerCost
) -> Case:
    """
    Args:
        method, level: of the backbone.
        encoder: method by which images are divided among all ranks; None leaves them with their
            sample.
        model: the backbone's cost.
    """

    def case(graph: DGraph) -> tuple[Loads, SampleTable]:
        backbone = _balanced(_vision_graph(graph, model), method, level)
        if encoder is None:
            plan = backbone.plan()
            return _with_sample(plan, plan.assignment, plan.cost_after), plan.carried
        images = graph.modality(ENCODER).distribute("WORLD").balance(encoder)
        plan = backbone.plan(subplans={"encoder": images})
        costs = plan.subplans["encoder"].cost_after.sum(axis=1) * UNIT
        return _of_vision(costs, plan.cost_after, together=False), plan.carried

    return case


def _with_sample(plan: LoadingPlan, placed: Assignment, backbone: npt.NDArray[Any]) -> Loads:
    """Encoder's cost where samples lie: those of a data-parallel rank go to its peers in turn."""
    rows = placed.rows
    bucket = placed.bucket[rows]
    begins = np.searchsorted(bucket, np.arange(placed.buckets))
    peer = (np.arange(len(rows)) - begins[bucket]) % TP
    costs = plan.samples.lengths[ENCODER][rows] * UNIT
    encoder = np.bincount(bucket * TP + peer, costs, minlength=placed.buckets * TP)
    return _of_vision(encoder, backbone, together=True)


def _of_vision(encoder: npt.NDArray[Any], backbone: npt.NDArray[Any], *, together: bool) -> Loads:
    """
    Args:
        encoder: [clients] cost.
        backbone: [data-parallel ranks, micro-batches] cost, which peers share.
        together: whether a rank continues with its backbone as soon as its peers have encoded their
            images. Otherwise embeddings travel, and all ranks wait for each other in between.
    """
    ranks = backbone.sum(axis=1) / TP
    peers = encoder.reshape(-1, TP).max(axis=1)
    time = (peers + ranks).max() if together else peers.max() + ranks.max()
    return {"whole": (float(time), float(encoder.mean() + ranks.mean()))}
