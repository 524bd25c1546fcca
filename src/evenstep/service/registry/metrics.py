"""Measurements of a running service: how long trainers waited, for what, and how even costs were.

A step's *exposed* time is how long the rank that waited longest waited for its data, since all
others wait for that rank. The *stages* of that wait are of the same rank: seconds spent on
planning, fetching and building its data; the rank waited only for what prefetch did not hide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TakenStep:
    """A step that a client has taken, as it reports it."""

    step: int
    seconds: float
    """How long it waited."""
    stages: Mapping[str, float]
    """Seconds by message, and "build" for what the constructor did itself."""
    imbalance: float
    imbalance_before: float
    tokens: int


@dataclass
class _Step:
    seconds: dict[int, float] = field(default_factory=dict)
    """By rank."""
    slowest: dict[str, float] = field(default_factory=dict)
    """Stages of the rank that waited longest."""
    imbalance: float = 1.0
    imbalance_before: float = 1.0
    tokens: int = 0


class WaitStatistics:
    """How long clients waited for the steps that they took, as they report it."""

    def __init__(self, kept: int = 512) -> None:
        """
        Args:
            kept: steps that `summary` covers; totals of clients cover all steps.
        """
        self._kept = kept
        self._steps: OrderedDict[int, _Step] = OrderedDict()
        self._reached: dict[int, int] = {}
        self._waited: dict[int, float] = {}
        self._ended: set[int] = set()

    def record_step(self, rank: int, record: TakenStep) -> None:
        """Records that a client has taken a step."""
        found = self._steps.setdefault(record.step, _Step())
        if record.seconds >= max(found.seconds.values(), default=0.0):
            found.slowest = dict(record.stages)
        found.seconds[rank] = record.seconds
        found.imbalance, found.imbalance_before = record.imbalance, record.imbalance_before
        found.tokens += record.tokens
        self._reached[rank] = record.step + 1
        self._waited[rank] = self._waited.get(rank, 0.0) + record.seconds
        self._ended.discard(rank)
        while len(self._steps) > self._kept:
            self._steps.popitem(last=False)

    def forget_ranks(self) -> None:
        """Forgets how far ranks have come: they are others now."""
        self._reached.clear()
        self._waited.clear()
        self._ended.clear()

    def record_end(self, rank: int) -> None:
        """Records that a client has reached the end of the mixture."""
        self._ended.add(rank)
        self._reached.setdefault(rank, 0)

    @property
    def all_ended(self) -> bool:
        """Whether every client that took a step has reached the end."""
        return bool(self._reached) and self._ended >= self._reached.keys()

    def clients(self) -> list[dict[str, Any]]:
        """JSON-able, by rank."""
        return [
            {
                "rank": rank,
                "step": step,
                "wait_seconds": self._waited.get(rank, 0.0),
                "ended": rank in self._ended,
            }
            for rank, step in sorted(self._reached.items())
        ]

    def summary(self) -> dict[str, Any]:
        """JSON-able, over the steps that are kept. The mean excludes the first, for which nothing
        was ready."""
        if not self._steps:
            return {"steps": 0}
        numbers = sorted(self._steps)
        steps = [self._steps[n] for n in numbers]
        exposed = [max(step.seconds.values()) for step in steps]
        later = exposed[1:] or exposed
        stages = sorted({name for step in steps for name in step.slowest})
        return {
            "steps": len(numbers),
            "first_step": numbers[0],
            "last_step": numbers[-1],
            "exposed_seconds": {
                "first": exposed[0],
                "last": exposed[-1],
                "mean": fmean(later),
                "p95": float(np.percentile(later, 95)),
            },
            "stage_seconds": {s: fmean(step.slowest.get(s, 0.0) for step in steps) for s in stages},
            "imbalance": fmean(step.imbalance for step in steps),
            "imbalance_before": fmean(step.imbalance_before for step in steps),
            "tokens": sum(step.tokens for step in steps),
        }


class MetricsExporter:
    """The same figures as ``ray.util.metrics``, which Ray exports to Prometheus."""

    def __init__(self, job: str) -> None:
        from ray.util.metrics import Counter, Gauge, Histogram

        def tagged(kind: Any, name: str, text: str, *more: str, **options: Any) -> Any:
            made = kind(f"evenstep_{name}", text, tag_keys=("job", *more), **options)
            made.set_default_tags({"job": job})
            return made

        bounds = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]
        wait = "Seconds that a client waited for a step's data."
        self._wait = tagged(Histogram, "wait_seconds", wait, boundaries=bounds)
        self._exposed = tagged(Gauge, "exposed_seconds", "Wait of the rank that waited longest.")
        self._stage = tagged(Gauge, "stage_seconds", "Seconds spent on that rank's data.", "stage")
        self._imbalance = tagged(Gauge, "imbalance", "Costliest bucket over the mean.", "when")
        held = "Samples that a loader holds."
        self._depth = tagged(Gauge, "queue_samples", held, "loader", "queue")
        self._silent = tagged(Gauge, "silent_roles", "Roles that do not answer.")
        unwritten = "1 while the planner's states cannot be written to the store, else 0."
        self._store = tagged(Gauge, "store_failing", unwritten)
        died = "Processes of roles that died and were followed by others."
        self._restarts = tagged(Counter, "restarts_total", died, "role")
        self._standbys = tagged(Gauge, "standbys", "Standby loaders that are ready.")
        played = "Standbys that have followed a loader that died."
        self._promotions = tagged(Counter, "promotions_total", played, "role")
        self._drawn = tagged(Counter, "drawn_samples_total", "Samples drawn.", "source")
        self._bad = tagged(Counter, "bad_samples_total", "Samples that were passed over.", "source")
        sent = "Bytes of files, samples and micro-batches, from where to where."
        self._bytes = tagged(Counter, "sent_bytes_total", sent, "road")
        self._exported: dict[tuple[Any, str], float] = {}
        """By counter and tag, the totals that counters have reached."""

    def observe_wait(self, seconds: float) -> None:
        """Counts a client's wait for one step."""
        self._wait.observe(seconds)

    def export(self, status: Mapping[str, Any]) -> None:
        """Sets all gauges and counters from a service's status."""
        self._silent.set(len(status["silent"]))
        self._store.set(status["planner"].get("store_error") is not None)
        self._standbys.set(sum(standby["ready"] for standby in status["standbys"]))
        steps = status["steps"]
        if steps["steps"]:
            self._exposed.set(steps["exposed_seconds"]["last"])
            for stage, seconds in steps["stage_seconds"].items():
                self._stage.set(seconds, tags={"stage": stage})
            self._imbalance.set(steps["imbalance"], tags={"when": "after"})
            self._imbalance.set(steps["imbalance_before"], tags={"when": "before"})
        for loader in status["loaders"]:
            if "sources" in loader:
                held = {"buffered": sum(loader["sources"].values())}
                for queue, count in {**held, "staged": loader["staged_samples"]}.items():
                    self._depth.set(count, tags={"loader": str(loader["loader"]), "queue": queue})
        planner = status["planner"]
        for restart in status["restarts"]:
            self._count_to(self._restarts, "role", {restart["role"]: restart["number"]})
            self._count_to(self._promotions, "role", {restart["role"]: restart["promotions"]})
        self._count_to(self._drawn, "source", planner.get("drawn", {}))
        self._count_to(self._bad, "source", planner.get("bad_samples", {}))
        self._count_to(self._bytes, "road", status["bytes"])

    def _count_to(self, counter: Any, tag: str, totals: Mapping[str, float]) -> None:
        for value, total in totals.items():
            more = total - self._exported.get((counter, value), 0)
            if more > 0:
                counter.inc(more, tags={tag: value})
                self._exported[counter, value] = total
