"""`Job`: the description of a run, from which all roles are made. Checked when it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import count
from typing import Any

from evenstep.data.pickling import check_picklable, pickled
from evenstep.data.source import Source
from evenstep.data.source_files import list_files
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_given, check_one_of, check_seconds
from evenstep.plan.sharding import METHODS, Sharding
from evenstep.plan.sharding.adaptive import check_methods
from evenstep.service.collators import Collate, check_collate, collator_of, masks_first_label, pads
from evenstep.service.job_fingerprint import fingerprint_of
from evenstep.service.mesh import mesh_of
from evenstep.service.sample_measure import MODALITIES, SUPERVISED, SampleMeasure
from evenstep.service.source_layout import SourceLayout
from evenstep.service.source_loader import LoaderJob
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.loaders import SourceStripe
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.strategy.mixture import LengthCurriculum, Mixture, Schedule
from evenstep.strategy.mixture.stop import ALL_REPEATED, REPEAT, stop_rule

Strategy = Callable[[DGraph, ClientPlaceTree, int], LoadingPlan]
"""Makes the plan from a step's graph, the trainer's mesh and the step's number."""

_FILL = 0.9  # of what micro-batches hold, drawn by default
_REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """A mixture of sources, a mesh of trainer ranks, and a strategy.

    Args:
        sources: what to draw from, each with a name of its own.
        mesh: `Mesh(...)`, a mapping of sizes, or torch's DeviceMesh; a `ClientPlaceTree` once
            built.
        strategy: from a step's graph, the mesh and the step's number to its plan; see `DGraph`.
        micro_batches: of each bucket in each step.
        max_tokens: tokens that a micro-batch holds.
        seed: of the draws and of each source's order.
        samples_per_step: samples that all ranks together draw in a step.
        tokens_per_step: instead: as many samples as fit into that many tokens. If neither is given,
            nine tenths of what the micro-batches of all data-parallel ranks hold.
        unit: what weights count: "samples" or "tokens".
        stop: when the mixture ends; see `evenstep.strategy.mixture.stop`.
        schedule: weights of sources by step; None uses each source's own weight.
        curriculum: by step, the longest sample that may be drawn; None admits all.
        collate: "pack" for `PackCollator()`, "pad" for `PadCollator()`, or a function from a
            micro-batch's samples to a batch.
        subplan_collate: collate functions of subplans, by name; `vision_fields` by default.
        sharding: how a packed row is cut over the context-parallel ranks that share it: methods of
            `evenstep.plan.sharding`, the fastest of which is taken for each row, or a function of
            the documents' lengths and the number of ranks; None gives each of these ranks the whole
            row.
        loss_reduction: how the trainer's loss reduces the supervised tokens of a micro-batch:
            "mean" or "sum".
        modalities: by name, from a sample to its length in the modality, 0 if it has none of it.
        counted: modalities whose lengths add up to a sample's tokens, by which samples are drawn;
            by default "text" if the job has it, and otherwise the first.
        supervised: from a sample to its supervised tokens; None counts labels, as the collate
            function will leave them.
        prefetch: steps that each client requests beyond the one that it trains on.
        buffer_size: samples of each source that a loader prepares ahead, if `buffer_bytes` allows.
        buffer_bytes: bytes of prepared samples that each loader holds, beside those that wait for a
            constructor. Sources share them by what is drawn; each holds at least what a step takes
            of it.
        decoded_bytes: bytes of decoded Parquet rows that each loader's process holds; with
            ``backend="local"`` it is `evenstep.data.parquet.DECODED.limit` of this process.
        workers: processes of each loader that transform samples; 0 transforms in the loader.
        plans_kept: steps whose plans stay in the planner's memory, for clients that ask again and
            for checkpoints.
        warn_after: seconds after which a client that waits logs, as a warning of the logger
            "evenstep", which role keeps it waiting; again after twice as long, and so on. None or 0
            logs nothing.
        world_size: ranks of the trainer, if known: the mesh must fill it.
    """

    sources: Sequence[Source]
    mesh: Any
    strategy: Strategy
    micro_batches: int = 1
    max_tokens: int | None = None
    seed: int = 0

    samples_per_step: int | None = None
    tokens_per_step: int | None = None
    unit: str = "samples"
    stop: str = "repeat"
    schedule: Schedule | Mapping[str, float] | Callable[[int], Mapping[str, float]] | None = None
    curriculum: LengthCurriculum | None = None

    collate: str | Collate = "pack"
    subplan_collate: Mapping[str, Collate] = field(default_factory=dict)
    sharding: str | Sequence[str] | Callable[[Any, int], Sharding] | None = METHODS
    loss_reduction: str = "mean"

    modalities: Mapping[str, Callable[[Any], int]] = field(default_factory=lambda: dict(MODALITIES))
    counted: Sequence[str] = ()
    supervised: Callable[[Any], int] | None = None

    prefetch: int = 2
    buffer_size: int = 256
    buffer_bytes: int = 256 << 20
    decoded_bytes: int = 128 << 20
    workers: int = 0
    plans_kept: int = 64
    warn_after: float | None = 20.0
    world_size: int | None = None

    def __post_init__(self) -> None:
        self._check_sources()
        tree = mesh_of(self.mesh)
        if self.world_size is not None and len(tree) != self.world_size:
            raise ConfigurationError(
                f"the mesh {tree.sizes} has {len(tree)} clients and the job {self.world_size} "
                "ranks; make the product of the mesh's sizes equal to world_size"
            )
        object.__setattr__(self, "mesh", tree)
        if not callable(self.strategy):
            raise ConfigurationError(
                f"strategy={self.strategy!r} must be a function of (graph, mesh, step) that "
                "returns a plan, such as graph.plan()"
            )
        check_given(
            seed=self.seed,
            prefetch=self.prefetch,
            buffer_size=self.buffer_size,
            buffer_bytes=self.buffer_bytes,
            decoded_bytes=self.decoded_bytes,
        )
        check_at_least(
            1,
            micro_batches=self.micro_batches,
            max_tokens=self.max_tokens,
            buffer_size=self.buffer_size,
            buffer_bytes=self.buffer_bytes,
            decoded_bytes=self.decoded_bytes,
            plans_kept=self.plans_kept,
        )
        check_at_least(0, seed=self.seed, prefetch=self.prefetch, workers=self.workers)
        check_seconds("logs nothing", warn_after=self.warn_after)
        self._check_modalities()
        self._check_amount()
        self._check_collation()
        self.mixture(dict.fromkeys(self.names, 1))  # refuses bad weights, units and stop rules
        for name in ("strategy", "collate", "modalities", "supervised", "schedule", "sharding"):
            check_picklable(f"{name}={getattr(self, name)!r} of the job", getattr(self, name))
        for source in self.sources:
            check_picklable(f"source {source.name!r}", source)

    # Derived values

    @property
    def tree(self) -> ClientPlaceTree:
        """The mesh."""
        tree: ClientPlaceTree = self.mesh
        return tree

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the sources, in the order in which sample tables number them."""
        return tuple(source.name for source in self.sources)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of lengths in sample tables: the modalities and `SUPERVISED`."""
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
        """The collate function."""
        return collator_of(self.collate)

    @property
    def passes(self) -> int | None:
        """How often each source is read; None means endlessly."""
        return None if stop_rule(self.stop) in (REPEAT, ALL_REPEATED) else 1

    def mixture(self, sizes: Mapping[str, int | None]) -> Mixture:
        """A new mixture, before its first draw.

        Args:
            sizes: samples in a pass of each source, if known.

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
        """See `fingerprint_of`."""
        return fingerprint_of({**vars(self), "tree": self.tree})

    def loader_jobs(self, layout: SourceLayout, first: int = 0) -> list[LoaderJob]:
        """[loaders] what each is sent.

        Args:
            first: number of the first loader.
        """
        workers = layout.workers or (None,) * len(layout.shares)
        sizes = layout.buffer_bytes or (None,) * len(layout.shares)
        return [self.for_loader(*each) for each in zip(layout.shares, count(first), workers, sizes)]

    def on(self, mesh: Any) -> Job:
        """The same job for another mesh. If it was not told how much to draw, a step draws what
        the new mesh holds.

        Args:
            mesh: see `Job`.

        Raises:
            ConfigurationError: the job does not go with the mesh.
        """
        filling = self.max_tokens is not None and self.tokens_per_step == self._filling
        amount = None if filling else self.tokens_per_step
        return replace(self, mesh=mesh, tokens_per_step=amount, world_size=None)

    @property
    def _filling(self) -> int:
        """Tokens of a step that fill the mesh's micro-batches."""
        assert self.max_tokens is not None
        room = self.tree.sizes["DP"] * self.micro_batches * self.max_tokens
        return max(int(room * _FILL), self.max_tokens)

    def for_loader(
        self,
        shares: Sequence[SourceStripe | str],
        number: int = 0,
        workers: int | None = None,
        buffer_bytes: int | None = None,
    ) -> LoaderJob:
        """The part of the job that a Source Loader is sent.

        Args:
            shares: the parts of sources that the loader owns; a name is a whole source.
            number: which loader of the job it is.
            workers, buffer_bytes: of this loader; None is the job's.

        Raises:
            ConfigurationError: the job does not have a source.
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
            workers=self.workers if workers is None else workers,
            buffer_size=self.buffer_size,
            buffer_bytes=self.buffer_bytes if buffer_bytes is None else buffer_bytes,
            decoded_bytes=self.decoded_bytes,
        )

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: cached values may not be needed where the job is sent, such as a
        collate function, which needs torch."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # Checks

    def _check_sources(self) -> None:
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
                f"several sources are named {', '.join(map(repr, twice[:5]))}; samples are "
                "identified by the name of their source, so give each source another name"
            )
        for source in sources:
            if source.kind != "dataset":
                list_files(source)  # raises if there is none
        object.__setattr__(self, "sources", sources)

    def _check_modalities(self) -> None:
        if not self.modalities or SUPERVISED in self.modalities:
            raise ConfigurationError(
                f"modalities {list(self.modalities)} must be at least one, and none of them "
                f"{SUPERVISED!r}, the column of supervised tokens"
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

    def _check_amount(self) -> None:
        if self.samples_per_step is not None or self.tokens_per_step is not None:
            return  # `Mixture` refuses both at once
        if self.max_tokens is None:
            raise ConfigurationError(
                "the job does not say how much a step draws; give samples_per_step, "
                "tokens_per_step, or max_tokens of a micro-batch"
            )
        object.__setattr__(self, "tokens_per_step", self._filling)

    def _check_collation(self) -> None:
        check_one_of(_REDUCTIONS, loss_reduction=self.loss_reduction)
        check_collate(self.collate)
        if isinstance(self.sharding, str):
            object.__setattr__(self, "sharding", (self.sharding,))
        if self.sharding is not None and not callable(self.sharding):
            check_methods(self.sharding)
        if self.tree.sizes["CP"] > 1 and self.sharding is not None and pads(self.collate):
            raise ConfigurationError(
                f"the mesh has CP={self.tree.sizes['CP']}, and padded rows are not cut over "
                "context-parallel ranks; choose collate='pack', or sharding=None to give each of "
                "these ranks the whole batch"
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
