"""`Job`: the description of a run, from which all roles are made. Checked when it is built.

The fingerprint is equal for jobs that plan the same, as far as that can be known without reading
data. Functions are identified by their names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import count
from typing import Any

from evenstep.cost import MeasuredCost
from evenstep.data.pickling import check_picklable, pickled
from evenstep.data.source import Source
from evenstep.data.source_files import list_files, with_first_openings
from evenstep.errors import ConfigurationError
from evenstep.mixture import Mixer
from evenstep.mixture.mixture_options import ALL_REPEATED, REPEAT
from evenstep.plan.policy import Policy, check_policy
from evenstep.plan.sharding import METHODS, Sharding
from evenstep.plan.sharding.adaptive import check_methods
from evenstep.plan.too_long import TOO_LONG
from evenstep.plan.value_checks import (
    AUTO,
    NamesArguments,
    check_at_least,
    check_given,
    check_one_of,
    check_type,
    stable_repr,
)
from evenstep.service.job.collators import (
    Collate,
    check_collate,
    collator_of,
    keeps_first_label,
    packs,
    pads,
)
from evenstep.service.job.job_options import DrawOptions, MeasureOptions, ServiceMemory, mesh_of
from evenstep.service.job.sample_measure import MEDIA, SUPERVISED, SampleMeasure
from evenstep.service.job.source_layout import LoaderJob, SourceLayout
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.loaders import SourceStripe
from evenstep.strategy.mesh import ClientPlaceTree


def _name(value: Any) -> Any:
    """A function or object as its name."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return getattr(value, "__qualname__", None) or stable_repr(value)


Strategy = Callable[[DGraph, ClientPlaceTree, int], LoadingPlan]
"""Makes the plan from a step's graph, the trainer's mesh and the step's number."""

_FILL = 0.9  # of what micro-batches hold, drawn by default


@dataclass(frozen=True, kw_only=True, eq=False)
class Job(NamesArguments):
    """A mixture of sources, a mesh of trainer ranks, and a strategy.

    Args:
        sources: what to draw from, each with a name of its own.
        mesh: `Mesh(...)`, a mapping of sizes, or torch's DeviceMesh; a `ClientPlaceTree` once
            built.
        policy: how groups are formed, any that a `DataLoader` takes. Data-parallel rank r of the
            mesh gets what rank r of a loader gets of the same samples.
        strategy: instead of a policy: from a step's graph, the mesh and the step's number to its
            plan; see `DGraph`.
        micro_batches: of each data-parallel rank in each step, which is an update; of a policy that
            forms micro-batches itself, as many as it forms.
        max_tokens: tokens that a micro-batch holds, where the policy does not say it.
        too_long: what becomes of longer samples: "error", "skip", which counts them in the status,
            or "truncate", which cuts them where they are prepared. See `evenstep.plan.too_long`.
        broadcast_at: axes of the mesh along which the trainer broadcasts what the first rank has
            fetched; a strategy says so by ``graph.broadcast_at``.
        seed: of the draws and of each source's order.
        draws: what a step draws.
        collate: "pack" for `PackCollator()`, "pad" for `PadCollator()`, or a function from a
            micro-batch's samples to a batch. By default "pad" where the policy pads, else "pack".
        subplan_collate: collate functions of subplans, by name; `vision_fields` by default.
        sharding: how a packed row is cut over the context-parallel ranks that share it: methods of
            `evenstep.plan.sharding`, the fastest of which is taken for each row, or a function of
            the documents' lengths and the number of ranks; None gives each of these ranks the whole
            row.
        measures: what is measured of a sample, and how the loss uses it.
        memory: what roles prepare ahead, and what they keep.

    Raises:
        ConfigurationError: a value is not possible, or values do not go together.
    """

    sources: Sequence[Source]
    mesh: Any
    policy: Policy | None = None
    strategy: Strategy | None = None
    micro_batches: int = 1
    max_tokens: int | None = None
    too_long: str = "error"
    broadcast_at: Sequence[str] = ()
    seed: int = 0
    draws: DrawOptions = field(default_factory=DrawOptions)
    collate: str | Collate = AUTO
    subplan_collate: Mapping[str, Collate] = field(default_factory=dict)
    sharding: str | Sequence[str] | Callable[[Any, int], Sharding] | None = METHODS
    measures: MeasureOptions = field(default_factory=MeasureOptions)
    memory: ServiceMemory = field(default_factory=ServiceMemory)

    def __post_init__(self) -> None:
        check_type(DrawOptions, draws=self.draws)
        check_type(MeasureOptions, measures=self.measures)
        check_type(ServiceMemory, memory=self.memory)
        self._check_sources()
        object.__setattr__(self, "mesh", mesh_of(self.mesh))
        check_given(seed=self.seed)
        check_at_least(0, seed=self.seed)
        check_at_least(1, micro_batches=self.micro_batches, max_tokens=self.max_tokens)
        if self.policy is not None:
            self._check_policy(self.policy)
        elif not callable(self.strategy):
            raise ConfigurationError(
                f"strategy={self.strategy!r} must be a function of (graph, mesh, step) that "
                "returns a plan, such as graph.plan(); or pass policy=, such as Even(max_tokens)"
            )
        elif self.broadcast_at:
            raise ConfigurationError(
                f"broadcast_at={self.broadcast_at!r} goes with a policy; let the strategy call "
                "graph.broadcast_at"
            )
        if self.collate == AUTO:
            pads_rows = self.policy is not None and not self.policy.packed
            object.__setattr__(self, "collate", "pad" if pads_rows else "pack")
        self._check_too_long()
        self._check_amount()
        self._check_collation()
        self.mixture(dict.fromkeys(self.names, 1))  # refuses bad weights, units and stop rules
        for part, names in (
            (self, ("policy", "strategy", "collate", "sharding")),
            (self.draws, ("schedule",)),
            (self.measures, ("modalities", "supervised")),
        ):
            for name in names:
                value = getattr(part, name)
                check_picklable(f"{name}={value!r} of the job", value)
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
        return (*self.measures.modalities, SUPERVISED)

    @property
    def labels(self) -> str:
        """How the model reads labels: see `MeasureOptions`."""
        by_default = "every" if keeps_first_label(self.collate) else "causal"
        return self.measures.labels or by_default

    @property
    def measure(self) -> SampleMeasure:
        return SampleMeasure(
            modalities=self.measures.modalities,
            supervised=self.measures.supervised,
            labels=self.labels,
            counted=self.measures.counted[0],
            too_long=self.too_long,
            limit=self._room,
            of_limit=tuple(self.measures.counted),
        )

    @cached_property
    def collator(self) -> Collate:
        """The collate function."""
        return collator_of(self.collate, self.labels)

    @property
    def passes(self) -> int | None:
        """How often each source is read; None means endlessly."""
        return None if self.draws.stop in (REPEAT, ALL_REPEATED) else 1

    def mixture(self, sizes: Mapping[str, int | None]) -> Mixer:
        """A new mixture, before its first draw.

        Args:
            sizes: samples in a pass of each source, if known.

        Raises:
            ConfigurationError: see `Mixer`.
        """
        weights, draws = {source.name: source.weight for source in self.sources}, self.draws
        return Mixer(
            self.names,
            weights if draws.schedule is None else draws.schedule,
            samples_per_step=draws.samples_per_step,
            tokens_per_step=draws.tokens_per_step,
            by=draws.by,
            stop=draws.stop,
            curriculum=draws.curriculum,
            modalities=self.measures.counted,
            sizes=sizes,
            seed=self.seed,
        )

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits; see the module docstring."""
        measures = self.measures
        content = [
            [
                [s.name, s.paths, s.transform_name, s.weight, s.shuffle, s.seed, s.block]
                for s in self.sources
            ],
            self.tree.to_dict(),
            [self.micro_batches, self.max_tokens, self.too_long, self.seed, self.memory.prefetch],
            {name: _name(value) for name, value in vars(self.draws).items()},
            {name: _name(function) for name, function in measures.modalities.items()},
            [list(measures.counted), _name(measures.supervised), measures.loss_reduction],
            [_name(self.strategy), _name(self.collate), _name(self.sharding)],
        ]
        if self.policy is not None:
            content.append([self.policy.fingerprint, list(self.broadcast_at)])
        text = json.dumps(content, sort_keys=True, default=_name)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def loader_jobs(self, layout: SourceLayout, first: int = 0) -> list[LoaderJob]:
        """[loaders] the part of the job that each is sent.

        Args:
            first: number of the first loader.
        """
        workers = layout.workers or (None,) * len(layout.shares)
        sizes = layout.buffer_bytes or (None,) * len(layout.shares)
        return [self.for_loader(*each) for each in zip(layout.shares, count(first), workers, sizes)]

    def on(self, mesh: Any) -> Job:
        """The same job for another mesh. If the job does not say how much to draw, a step draws
        what the new mesh holds.

        Args:
            mesh: see `Job`.

        Raises:
            ConfigurationError: the job does not go with the mesh.
        """
        draws = self.draws
        if self._room is not None and draws.tokens_per_step == self._filling:
            draws = replace(draws, tokens_per_step=None)
        return replace(self, mesh=mesh, draws=draws)

    def opened(self) -> Job:
        """The same job, which from now on has its files as they are now; see `FirstOpening`.

        Raises:
            ConfigurationError, StorageError: files of a source cannot be found.
        """
        job = copy(self)
        object.__setattr__(job, "sources", with_first_openings(self.sources))
        return job

    @property
    def _filling(self) -> int:
        """Tokens of a step that fill the mesh's micro-batches."""
        assert self._room is not None
        room = self.tree.sizes["DP"] * self.micro_batches * self._room
        return max(int(room * _FILL), self._room)

    @property
    def _room(self) -> int | None:
        """Tokens that a micro-batch holds."""
        return self.max_tokens if self.policy is None else self.policy.max_length

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
            workers=self.memory.workers if workers is None else workers,
            buffer_size=self.memory.buffer_size,
            buffer_bytes=self.memory.buffer_bytes if buffer_bytes is None else buffer_bytes,
            decoded_bytes=self.memory.decoded_bytes,
        )

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: the receiver may not need cached values, such as a collate function,
        which needs torch."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # Checks

    def _check_sources(self) -> None:
        sources = tuple(self.sources) if isinstance(self.sources, Iterable) else ()
        if not sources or not all(isinstance(each, Source) for each in sources):
            raise ConfigurationError(
                f"sources is a {type(self.sources).__name__} and must be a list of one "
                "evenstep.service.Source or more"
            )
        names = [source.name for source in sources]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(
                f"several sources are named {', '.join(map(repr, twice[:5]))}; samples are "
                "identified by the name of their source, so give each source another name"
            )
        # Raises if a source has no files.
        systems = {f.system for s in sources if s.kind != "dataset" for f in list_files(s)}
        for system in systems:  # which would list them from memory when the job is started
            system.invalidate_cache()
        object.__setattr__(self, "sources", sources)

    def _check_policy(self, policy: Any) -> None:
        """Checks it, and makes what is measured and how many micro-batches there are follow it."""
        check_policy(policy, "strategy= with a function")
        if self.strategy is not None:
            raise ConfigurationError(
                f"policy={policy!r}, and the job has a strategy=; pass one of both"
            )
        if policy.fits_memory or self.max_tokens is not None:
            said = "auto" if policy.fits_memory else f"{self.max_tokens:,} of the job"
            raise ConfigurationError(
                f"max_tokens={said} with policy={policy.name!r}: give the policy the number of "
                "tokens that fit"
            )
        if isinstance(getattr(policy.cost, "language", policy.cost), MeasuredCost):
            raise ConfigurationError(
                "cost=MeasuredCost() is measured by a DataLoader's trainers, and a service does "
                "not time steps; pass cost=evenstep.cost_of(model), or what a loader has measured"
            )
        if policy.context_parallel > 1:
            raise ConfigurationError(
                f"context_parallel={policy.context_parallel} of the policy is said by the mesh of "
                f"a job: leave it out, and pass mesh=Mesh(CP={policy.context_parallel}, ...)"
            )
        if policy.micro_batches > 1:
            if self.micro_batches not in (1, policy.micro_batches):
                raise ConfigurationError(
                    f"micro_batches={self.micro_batches} of the job, and the policy forms "
                    f"{policy.micro_batches}; leave that of the job out"
                )
            object.__setattr__(self, "micro_batches", policy.micro_batches)
        collate = self.collate
        if collate != AUTO and (pads(collate) if policy.packed else packs(collate)):
            how, other = ("packs", "pack") if policy.packed else ("pads", "pad")
            raise ConfigurationError(
                f"collate={collate!r}, and the policy {how} its groups; leave collate= out, or "
                f"pass {other!r}, or a policy with packed={not policy.packed}"
            )
        self.tree.delivery("DP", tuple(self.broadcast_at))  # raises for an unknown axis
        if policy.counts_patches:
            modalities = {**MEDIA, **self.measures.modalities}
            measures = replace(self.measures, modalities=modalities)
            object.__setattr__(self, "measures", measures)

    def _check_too_long(self) -> None:
        check_one_of(TOO_LONG, too_long=self.too_long)
        given = f"too_long={self.too_long!r}"
        if self.too_long in ("split", "alone"):
            raise ConfigurationError(
                f"{given} is for a DataLoader; a service takes 'skip' or 'truncate', or sources of "
                "samples that are split already"
            )
        if self.too_long != "error" and self._room is None:
            raise ConfigurationError(f"{given} needs a limit: pass max_tokens= of a micro-batch")
        if self.too_long == "truncate" and len(self.measures.counted) > 1:
            raise ConfigurationError(
                f"{given}, and tokens are counted in {', '.join(self.measures.counted)}: which of "
                "them to cut is not known; pass counted= of one modality, or too_long='skip'"
            )

    def _check_amount(self) -> None:
        draws = self.draws
        if draws.samples_per_step is not None or draws.tokens_per_step is not None:
            return  # `Mixer` refuses both at once
        if self._room is None:
            raise ConfigurationError(
                "the job does not say how much a step draws; give draws= of "
                "samples_per_step or tokens_per_step, or max_tokens of a micro-batch"
            )
        object.__setattr__(self, "draws", replace(draws, tokens_per_step=self._filling))

    def _check_collation(self) -> None:
        check_collate(self.collate)
        if isinstance(self.sharding, str):
            object.__setattr__(self, "sharding", (self.sharding,))
        if self.sharding is not None and not callable(self.sharding):
            check_methods(self.sharding)
        if self.tree.sizes["CP"] > 1 and self.sharding is not None and pads(self.collate):
            raise ConfigurationError(
                f"the mesh has CP={self.tree.sizes['CP']}, and padded rows are not cut over its "
                "ranks; choose collate='pack', or sharding=None to give each the whole batch"
            )
        if self.memory.workers:
            pickled("what samples of the job are measured by", self.measure)
