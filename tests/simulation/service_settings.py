"""What a simulated service feeds, and what happens to it: numbers and names, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader_settings import error_of, spend
from processes import Fault

import evenstep.service as es
from evenstep.mixture import FeedbackSchedule
from evenstep.plan import Even, Policy, PoolSort, WorkloadPacking
from evenstep.plan.rng import generator
from evenstep.plan.sharding import METHODS
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

MESHES: Mapping[str, Mapping[str, int]] = {
    "one": {},
    "two": {"DP": 2},
    "four": {"DP": 4},
    "cut": {"DP": 2, "CP": 2},
    "stages": {"PP": 3, "DP": 2},
    "shared": {"DP": 2, "TP": 2},
}
POLICIES: Mapping[str, Policy] = {
    "even": Even(40, packed=True),
    "workload-packing": WorkloadPacking(40, micro_batches=2),
    "pool-sort": PoolSort(2),
}
_ROOM = 13  # tokens for each sample that is drawn; of few, more may be long


@dataclass(frozen=True)
class ServiceSetup:
    """What all runs of a job have in common. It decides what is drawn."""

    sizes: tuple[int, ...] = (17, 9)
    samples_per_step: int = 6
    stop: str = "all_exhausted"
    follows: bool = False
    """Whether the mixture follows what ranks report."""
    broadcast: bool = False
    packed: bool = False
    prefetch: int = 2
    plans_kept: int = 64
    bad_sample: int | None = None
    bad_batch: int | None = None
    """A sample whose batch cannot be collated."""
    bad_step: int | None = None
    """A step that the strategy cannot plan."""
    policy: str | None = None
    """Of `POLICIES`, instead of the strategy."""
    error: str = "raises"

    @property
    def fails(self) -> bool:
        """Whether the job may not reach its end."""
        return any(bad is not None for bad in (self.bad_sample, self.bad_batch, self.bad_step))


@dataclass(frozen=True)
class ServiceRun:
    """One life of the service, in which trainers may begin several times."""

    mesh: str = "two"
    loaders: int = 1
    standbys: int = 0
    constructors: int | None = None
    stripe: int = 3
    buffer_size: int = 4
    saves: int = 2
    """Steps from one checkpoint to the next."""
    lives: int = 1
    """How often the trainers begin, at most."""
    leaves: int | None = None
    """Steps after which all ranks but those of the last life stop."""
    astray: int | None = None
    """A rank that saves at other steps than the others."""
    closes: float | None = None
    """Seconds after which the service is closed."""
    changes: tuple[tuple[float, int], ...] = ()
    """Seconds after which so many loaders are to be there."""
    remesh: tuple[float, str] | None = None
    """Seconds after which the mesh changes, and to which."""
    lockstep: bool = True
    """Whether ranks wait for each other after each step, as collectives make them."""
    begins: bool = False
    """Whether ranks wait for each other after the first step: who has not begun holds nobody."""
    slow: bool = False
    late: bool = False
    """Whether messages may take their time."""
    repeats: bool = False
    """... and may arrive twice."""
    faults: tuple[Fault, ...] = ()


class Rows:
    """A source: a sample is its number, its length, and what becomes of it."""

    def __init__(self, source: int, size: int, setup: ServiceSetup, slow: bool) -> None:
        self._setup, self._slow = setup, slow
        self.lengths = generator(source, size).integers(2, 20, size).tolist()
        self._first = 1000 * source

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = self._first + index
        error = self._setup.error if number == self._setup.bad_sample else None
        tokens = [number] * self.lengths[index]
        return {"id": number, "input_ids": tokens, "error": error, "slow": self._slow}


def prepare(row: dict[str, Any]) -> dict[str, Any]:
    spend(row["slow"])
    if row["error"] is not None:
        raise error_of(row["error"])
    return row


@dataclass(frozen=True)
class Collate:
    bad: int | None
    error: str
    slow: bool

    def __call__(self, samples: Sequence[dict[str, Any]]) -> list[int]:
        spend(self.slow)
        numbers = [sample["id"] for sample in samples]
        if self.bad in numbers:
            raise error_of(self.error)
        return numbers


@dataclass(frozen=True)
class Strategy:
    bad: int | None
    error: str
    broadcast: bool

    def __call__(self, graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
        if step == self.bad:
            raise error_of(self.error)
        graph = graph.mix().distribute("DP").balance("greedy")
        if self.broadcast:
            graph = graph.broadcast_at("TP")
        return graph.plan()


def follow(weights: Mapping[str, float], signals: Mapping[str, Any]) -> Mapping[str, float]:
    losses = signals["loss_by_source"]
    return {name: weight / 2 + losses[name] for name, weight in weights.items()}


def loss_of(setup: ServiceSetup, step: int, rank: int) -> dict[str, float]:
    """What a rank reports."""
    return {f"source{n}": 1.0 + (7 * step + 3 * rank + 5 * n) % 4 for n in range(len(setup.sizes))}


def job_of(setup: ServiceSetup, mesh: str, *, buffer_size: int = 4, slow: bool = False) -> es.Job:
    sizes = MESHES[mesh]
    buckets = sizes.get("DP", 1)
    micro_batches = 2 if buckets == 1 else 1
    names = [f"source{number}" for number in range(len(setup.sizes))]
    weights = {name: 1.0 + number for number, name in enumerate(names)}
    if setup.policy is None:
        room = max(_ROOM * setup.samples_per_step, 72) // 2
        plans: dict[str, Any] = {
            "strategy": Strategy(setup.bad_step, setup.error, setup.broadcast),
            "micro_batches": micro_batches,
            "max_tokens": room,
        }
    else:
        plans = {
            "policy": POLICIES[setup.policy],
            "micro_batches": 1 if setup.policy == "workload-packing" else micro_batches,
            "broadcast_at": ("TP",) if setup.broadcast else (),
        }
    return es.Job(
        sources=[
            es.Source(
                name, Rows(number, size, setup, slow), transform=prepare, weight=weights[name]
            )
            for number, (name, size) in enumerate(zip(names, setup.sizes, strict=True))
        ],
        mesh=es.Mesh(**sizes),
        **plans,
        draws=es.DrawOptions(
            samples_per_step=setup.samples_per_step,
            stop=setup.stop,
            schedule=FeedbackSchedule(initial=weights, function=follow) if setup.follows else None,
        ),
        collate="pack" if setup.packed else Collate(setup.bad_batch, setup.error, slow),
        sharding=METHODS if setup.packed else None,
        memory=es.ServiceMemory(
            prefetch=setup.prefetch, buffer_size=buffer_size, plans_kept=setup.plans_kept
        ),
    )
