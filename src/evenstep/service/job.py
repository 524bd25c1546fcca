"""`Job`: all that the roles of the service are told. Checked where it is built."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from evenstep.data.pickling import check_picklable, pickled
from evenstep.data.source import Source
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.plain_values import stable_repr
from evenstep.plan.sharding import METHODS, Sharding
from evenstep.plan.sharding.adaptive import check_methods
from evenstep.service.collators import Collate, check_collate, collator_of, masks_first_label, pads
from evenstep.service.loader_job import LoaderJob
from evenstep.service.mesh import mesh_of
from evenstep.service.sample_measure import MODALITIES, SUPERVISED, SampleMeasure
from evenstep.service.source_layout import SourceStripe
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.strategy.mixture import LengthCurriculum, Mixture, Schedule
from evenstep.strategy.mixture.stop import ALL_REPEATED, REPEAT, stop_rule

__all__ = ["Job", "Strategy"]

Strategy = Callable[[DGraph, ClientPlaceTree, int], LoadingPlan]
"""From the graph of a step, the trainer's mesh and the step's number to the plan."""

_FILL = 0.9  # of what micro-batches hold, where a job does not say how much a step draws
_REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A mixture of sources, a mesh of trainer ranks, and a strategy."""

    sources: Sequence[Source]
    mesh: Any
    """`Mesh(...)`, a mapping of sizes, or a DeviceMesh of torch; a `ClientPlaceTree` once built."""
    strategy: Strategy
    micro_batches: int = 1
    """Of each bucket, in each step."""
    max_tokens: int | None = None
    """That a micro-batch holds."""
    seed: int = 0
    """Of what is drawn and of each source's order."""

    samples_per_step: int | None = None
    """That all ranks together draw in a step."""
    tokens_per_step: int | None = None
    """Instead: as many samples as hold no more tokens. Where neither is given, nine tenths of what
    the micro-batches of all data-parallel ranks hold."""
    unit: str = "samples"
    """What weights count: "samples" or "tokens"."""
    stop: str = "repeat"
    """When the mixture ends; see `evenstep.strategy.mixture.stop`."""
    schedule: Schedule | Mapping[str, float] | Callable[[int], Mapping[str, float]] | None = None
    """Weights of sources by step; None is each source's own weight."""
    curriculum: LengthCurriculum | None = None

    collate: str | Collate = "pack"
    """"pack" for `PackCollator()`, "pad" for `PadCollator()`, or a function from the samples of a
    micro-batch to a batch."""
    subplan_collate: Mapping[str, Collate] = field(default_factory=dict)
    """The same for subplans by name; by default `vision_fields`."""
    sharding: str | Sequence[str] | Callable[[Any, int], Sharding] | None = METHODS
    """How a packed row is cut over context-parallel ranks that share it: methods of
    `evenstep.plan.sharding`, of which the fastest is taken for each row, or a function of the
    lengths of documents and of ranks; None gives every one of them the whole row."""
    loss_reduction: str = "mean"
    """What the trainer's loss is over the supervised tokens of a micro-batch: "mean" or "sum"."""

    modalities: Mapping[str, Callable[[Any], int]] = field(default_factory=lambda: dict(MODALITIES))
    """By name, from a sample to its length; 0 for a sample that has none of it."""
    counted: Sequence[str] = ()
    """Modalities whose lengths, added up, are a sample's tokens for what is drawn; by default
    "text" where it is there, and otherwise the first."""
    supervised: Callable[[Any], int] | None = None
    """From a sample to its tokens that bear loss; None counts labels, as the collate function will
    leave them."""

    prefetch: int = 2
    """Steps that each client has under way beyond the one that it trains on."""
    buffer_size: int = 256
    """Samples of each source that a loader prepares ahead."""
    workers: int = 0
    """Processes of each loader that transform samples; 0 transforms in the loader."""
    plans_kept: int = 64
    """Steps whose plans stay in the planner's memory, for who asks again."""
    world_size: int | None = None
    """Ranks of the trainer, where they are known: the mesh must fill them."""

    def __post_init__(self) -> None:
        self._read_sources()
        tree = mesh_of(self.mesh)
        if self.world_size is not None and len(tree) != self.world_size:
            raise ConfigurationError(
                f"the mesh {tree.sizes} has {len(tree)} clients and the job {self.world_size} "
                "ranks; make the product of its sizes equal to world_size"
            )
        object.__setattr__(self, "mesh", tree)
        if not callable(self.strategy):
            raise ConfigurationError(
                f"strategy={self.strategy!r} must be a function of (graph, mesh, step) that gives "
                "a plan, such as evenstep.strategy.DGraph.plan makes"
            )
        check_given(seed=self.seed, prefetch=self.prefetch, buffer_size=self.buffer_size)
        check_at_least(
            1,
            micro_batches=self.micro_batches,
            max_tokens=self.max_tokens,
            buffer_size=self.buffer_size,
            plans_kept=self.plans_kept,
        )
        check_at_least(0, seed=self.seed, prefetch=self.prefetch, workers=self.workers)
        self._read_modalities()
        self._read_amount()
        self._read_forms()
        self.mixture(dict.fromkeys(self.names, 1))  # refuses weights, units and rules
        for name in ("strategy", "collate", "modalities", "supervised", "schedule", "sharding"):
            check_picklable(f"{name}={getattr(self, name)!r} of the job", getattr(self, name))
        for source in self.sources:
            check_picklable(f"source {source.name!r}", source)

    # What follows from it

    @property
    def tree(self) -> ClientPlaceTree:
        """The mesh."""
        tree: ClientPlaceTree = self.mesh
        return tree

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the sources, in the order in which sample tables number them."""
        return tuple(source.name for source in self.sources)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Of lengths in sample tables: the modalities and `SUPERVISED`."""
        return (*self.modalities, SUPERVISED)

    @property
    def measure(self) -> SampleMeasure:
        return SampleMeasure(
            modalities=self.modalities,
            supervised=self.supervised,
            packed=masks_first_label(self.collate),
            counted=self.counted[0],
        )

    @cached_property
    def collator(self) -> Collate:
        """From samples to a batch."""
        return collator_of(self.collate)

    @property
    def passes(self) -> int | None:
        """How often each source is read; None without end."""
        return None if stop_rule(self.stop) in (REPEAT, ALL_REPEATED) else 1

    def mixture(self, sizes: Mapping[str, int | None]) -> Mixture:
        """A new one, before its first draw.

        Args:
            sizes: samples of a pass of each source, where they are known.

        Raises:
            ConfigurationError: see `Mixture`.
        """
        weights = {source.name: source.weight for source in self.sources}
        return Mixture(
            self.names,
            weights if self.schedule is None else self.schedule,
            samples_per_step=self.samples_per_step,
            tokens_per_step=self.tokens_per_step,
            unit=self.unit,
            stop=self.stop,
            curriculum=self.curriculum,
            modalities=self.counted,
            sizes=sizes,
            seed=self.seed,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Equal for jobs that plan the same, as far as it can be told without reading data:
        functions are known by their names."""
        about = {
            "sources": [
                [s.name, s.paths, s.transform_name, s.weight, s.shuffle, s.seed, s.block]
                for s in self.sources
            ],
            "mesh": self.tree.to_dict(),
            "functions": [
                _named(self.strategy),
                _named(self.schedule),
                _named(self.collate),
                _named(self.sharding),
                _named(self.supervised),
                {name: _named(function) for name, function in self.modalities.items()},
            ],
            "curriculum": _named(self.curriculum),
            "numbers": {
                name: getattr(self, name)
                for name in (
                    "micro_batches",
                    "max_tokens",
                    "seed",
                    "samples_per_step",
                    "tokens_per_step",
                    "unit",
                    "stop",
                    "prefetch",
                    "loss_reduction",
                )
            },
            "counted": list(self.counted),
        }
        text = json.dumps(about, sort_keys=True, default=_named)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def for_loader(self, shares: Sequence[SourceStripe | str], number: int = 0) -> LoaderJob:
        """What a Source Loader is told.

        Args:
            shares: of sources, or names for whole ones.
            number: which loader of the job it is.

        Raises:
            ConfigurationError: a source that the job does not have.
        """
        given = [s if isinstance(s, SourceStripe) else SourceStripe(source=s) for s in shares]
        by_name = {source.name: source for source in self.sources}
        unknown = [share.source for share in given if share.source not in by_name]
        if unknown:
            raise ConfigurationError(
                f"loader {number} was given source {unknown[0]!r}, which the job does not have"
            )
        return LoaderJob(
            number=number,
            sources=tuple(by_name[share.source] for share in given),
            shares=tuple(given),
            measure=self.measure,
            columns=self.columns,
            seed=self.seed,
            passes=self.passes,
            workers=self.workers,
            buffer_size=self.buffer_size,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Fields alone: who is sent a job may have no use for what was worked out from it, such as
        a collate function, which needs torch."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # Construction

    def _read_sources(self) -> None:
        sources = tuple(self.sources) if not isinstance(self.sources, Source) else ()
        wrong = [s for s in sources if not isinstance(s, Source)]
        if not sources or wrong:
            raise ConfigurationError(
                f"sources={self.sources!r} must be a list of evenstep.service.Source, at least one"
            )
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(
                f"several sources are named {', '.join(map(repr, twice[:5]))}; samples are known "
                "by the name of their source, so give each another one"
            )
        for source in sources:
            if source.kind != "dataset":
                _files(source)
        object.__setattr__(self, "sources", sources)

    def _read_modalities(self) -> None:
        if not self.modalities or SUPERVISED in self.modalities:
            raise ConfigurationError(
                f"modalities {list(self.modalities)} must be at least one, and none of them "
                f"{SUPERVISED!r}, the column that counts tokens which bear loss"
            )
        for name, function in self.modalities.items():
            if not callable(function):
                raise ConfigurationError(
                    f"modality {name!r} is {function!r}; give a function from a sample to its "
                    "length"
                )
        counted = tuple(self.counted) if not isinstance(self.counted, str) else (self.counted,)
        if not counted:
            counted = ("text",) if "text" in self.modalities else (next(iter(self.modalities)),)
        unknown = [name for name in counted if name not in self.modalities]
        if unknown:
            raise ConfigurationError(
                f"counted={counted} names {unknown[0]!r}; the modalities are "
                f"{', '.join(self.modalities)}"
            )
        object.__setattr__(self, "counted", counted)

    def _read_amount(self) -> None:
        if self.samples_per_step is not None or self.tokens_per_step is not None:
            return  # Mixture refuses both at once
        if self.max_tokens is None:
            raise ConfigurationError(
                "it is not said how much a step draws; give samples_per_step or tokens_per_step, "
                "or max_tokens for what a micro-batch holds"
            )
        room = self.tree.sizes["DP"] * self.micro_batches * self.max_tokens
        object.__setattr__(self, "tokens_per_step", max(int(room * _FILL), self.max_tokens))

    def _read_forms(self) -> None:
        if self.loss_reduction not in _REDUCTIONS:
            raise ConfigurationError(
                f"loss_reduction={self.loss_reduction!r} must be one of {', '.join(_REDUCTIONS)}"
            )
        check_collate(self.collate)
        if isinstance(self.sharding, str):
            object.__setattr__(self, "sharding", (self.sharding,))
        if self.sharding is not None and not callable(self.sharding):
            check_methods(self.sharding)
        if self.tree.sizes["CP"] > 1 and self.sharding is not None and pads(self.collate):
            raise ConfigurationError(
                f"the mesh has CP={self.tree.sizes['CP']}, and padded rows are not cut over "
                "context-parallel ranks; choose collate='pack', or sharding=None if each of them "
                "is to get the whole batch"
            )
        for name, function in self.subplan_collate.items():
            if not callable(function):
                raise ConfigurationError(
                    f"subplan_collate of {name!r} is {function!r}; give a function from a list of "
                    "samples to a batch"
                )
        if self.workers:
            pickled("what samples of the job are measured by", self.measure)
            for source in self.sources:
                pickled(f"source {source.name!r}", source)


def _files(source: Source) -> None:
    from evenstep.data.source_files import list_files

    list_files(source)  # raises for those that are missing


def _named(value: Any) -> Any:
    """A function or object by its name."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    name = getattr(value, "__qualname__", None)
    return name if name else stable_repr(value)
