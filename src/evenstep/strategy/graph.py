"""`DGraph`: a builder of strategies, which ends in a `LoadingPlan` (OVERLORD, section 4).

The name is the paper's, for the data-flow graph of samples. The
object is a spec under construction: which modality counts, at which axis samples are distributed,
what they cost, how they are balanced, along which axes the trainer broadcasts. Each primitive
returns a new graph, in any order, so graphs can be shared, and one mixed graph is the root of the
plans of several modules:

    root = DGraph.of(metadata, tree, micro_batches=2).mix({"web": 0.7, "code": 0.3})
    plan = root.modality("text").distribute("DP").cost(lambda n: n * n).balance().plan()

Samples are placed when `plan` or `assignment` is first asked for, and only once: graphs whose specs
place samples alike share the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.mixture import Mixer
from evenstep.mixture.sample_table import BufferedMetadata, Metadata, SampleTable
from evenstep.plan.value_checks import check_at_least, check_one_of
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.balance.levels import LEVELS
from evenstep.strategy.balance.methods import METHODS, CostFunction, check_cost
from evenstep.strategy.loading_plan import LoadingPlan
from evenstep.strategy.mesh import AXES, STAGES, ClientPlaceTree
from evenstep.strategy.plan_builder import GraphSpec, bound_for, place_samples


@dataclass(frozen=True, eq=False)
class _Step:
    """The inputs that all graphs of a step share."""

    tree: ClientPlaceTree
    number: int
    metadata: Metadata
    carried: SampleTable | None
    micro_batches: int
    max_tokens: int | None
    mixture: Mixer | None


@dataclass(frozen=True, eq=False, kw_only=True)
class DGraph:
    """Samples of a step and a spec of what is done with them. Made by `of` and by its methods."""

    _step: _Step
    samples: SampleTable | None
    """Samples carried to this step, then those drawn; None before `mix` if metadata comes from
    loaders."""
    _spec: GraphSpec = field(default_factory=GraphSpec)
    _weights: Mapping[str, float] = field(default_factory=dict)
    _mixed: bool = False
    _cache: list[LoadingPlan] = field(default_factory=list)
    """Memoised plan, none or one; shared by graphs whose specs place samples alike."""

    @classmethod
    def of(
        cls,
        metadata: SampleTable | Metadata,
        tree: ClientPlaceTree,
        *,
        step: int = 0,
        micro_batches: int = 1,
        max_tokens: int | None = None,
        carried: SampleTable | None = None,
        mixture: Mixer | None = None,
    ) -> DGraph:
        """
        Args:
            metadata: the buffered samples, all of which take part unless `mix` is called; or an
                object that gives the next samples of a source.
            tree: the trainer's mesh.
            step: number of the step.
            micro_batches: of each bucket.
            max_tokens: limit of a micro-batch; None for no limit.
            carried: samples that the plan of the step before carried here; they go first.
            mixture: the job's own, from which `mix` draws by weights alone.

        Raises:
            ConfigurationError: a number below its least, or of the wrong type.
        """
        check_at_least(0, step=step)
        check_at_least(1, micro_batches=micro_batches, max_tokens=max_tokens)
        waiting = None if carried is None or not len(carried) else carried
        samples: SampleTable | None = None
        if isinstance(metadata, SampleTable):
            samples, metadata = _behind(waiting, metadata), BufferedMetadata(metadata)
        shared = _Step(tree, step, metadata, waiting, micro_batches, max_tokens, mixture)
        return cls(_step=shared, samples=samples)

    @property
    def step(self) -> int:
        """Number of the step."""
        return self._step.number

    @property
    def tree(self) -> ClientPlaceTree:
        return self._step.tree

    # Primitives

    def modality(self, name: str, *more: str) -> DGraph:
        """Counts lengths of this modality as a sample's tokens; of several, their sum, as for a
        backbone that processes image and text tokens alike.

        Raises:
            ConfigurationError: the samples are known and do not have the modality.
        """
        names = (name, *more)
        if self.samples is not None:
            bound_for(names, self.samples)
        return self._with(modality=names)

    def mix(self, schedule: Any = None) -> DGraph:
        """Draws the samples of the step: only they take part in what follows.

        A mixture draws once in a step, however many graphs ask it. `sample` is the paper's other
        name for this primitive, for strategies copied from its listings.

        Args:
            schedule: a `Mixer`; or weights by which the job's mixture draws: a schedule, a mapping
                from sources to weights, or a function of the step. None is the mixture's own
                schedule.

        Raises:
            ConfigurationError: the graph is mixed already, there is nothing to draw from, or the
                mixture has drawn by other weights in this step.
        """
        if self._mixed:
            raise ConfigurationError("mix was called before on this graph; mix once, from its root")
        shared = self._step
        mixture = schedule if isinstance(schedule, Mixer) else shared.mixture
        if mixture is None:
            raise ConfigurationError(
                f"mix({'' if schedule is None else type(schedule).__name__}) has no mixture to "
                "draw from: pass DGraph.of a mixture=, or mix an evenstep.mixture.Mixer"
            )
        weights = None if mixture is schedule else schedule
        samples = _behind(shared.carried, mixture.draw_with(self.step, shared.metadata, weights))
        assert mixture.record is not None
        drawn_by = dict(mixture.record.weights)
        return replace(self, samples=samples, _weights=drawn_by, _mixed=True, _cache=[])

    def distribute(self, axis: str) -> DGraph:
        """Divides samples among the buckets at an axis; see `ClientPlaceTree.bucket_count`.

        Args:
            axis: "DP", "CP", "TP" or "WORLD".

        Raises:
            ConfigurationError: an unknown axis.
        """
        return self._with(axis=axis, buckets=self.tree.bucket_count(axis))

    def one_by_one(self) -> DGraph:
        """Deals each image of a sample on its own (OVERLORD, Algorithm 2), so that those of one
        sample may be in several buckets: of a subplan, of one modality. Rows of the subplan, its
        costs and its `max_tokens` are then of images. Lengths are of images where the function of
        the modality in `MeasureOptions` returns a list, as `evenstep.batch.patches_of_each` does.
        """
        return self._with(one_by_one=True)

    def cost(self, fn: CostFunction) -> DGraph:
        """Sets the cost of a sample as a function of its tokens; the default is its tokens.

        Args:
            fn: from [n] int64 lengths, of samples or of images dealt one by one, to [n] costs, for
                all at once; or a `Cost` of `evenstep.cost`, such as `TransformerCost`.
        """
        check_cost(fn)
        return self._with(cost=fn)

    def balance(
        self,
        method: str = "greedy",
        level: str = "both",
        *,
        micro_batches: int | None = None,
        max_tokens: int | None = None,
    ) -> DGraph:
        """Balances by cost; see `evenstep.strategy.balance.levels`. A second call replaces the
        settings of its level and keeps the others, so the levels can have different methods.

        Args:
            method: one of `METHODS`.
            level: "intra" forms micro-batches by the method; "inter" assigns micro-batches to
                buckets by it; "both" balances buckets, and the micro-batches of each, by it.
            micro_batches: of each bucket, instead of the job's. A subplan has 1 by default.
            max_tokens: limit of a micro-batch in this graph's modality, instead of the job's. A
                subplan has no limit by default.

        Raises:
            ConfigurationError: an unknown method or level, or a number below 1.
        """
        check_one_of(METHODS, method=method)
        check_one_of(LEVELS, level=level)
        check_at_least(1, micro_batches=micro_batches, max_tokens=max_tokens)
        levels = ("intra", "inter") if level == "both" else (level,)
        changes: dict[str, Any] = {**dict.fromkeys(levels, method), "together": level == "both"}
        limits = {"micro_batches": micro_batches, "max_tokens": max_tokens}
        changes |= {name: limit for name, limit in limits.items() if limit is not None}
        return self._with(balancing=replace(self._spec.balancing, **changes))

    def broadcast_at(self, dim: str, *more: str, stages: str | None = None) -> DGraph:
        """Declares that the trainer broadcasts along these axes: only the first peer fetches.

        Args:
            dim, more: "TP", "CP", "DP" or "PP".
            stages: stages of a pipeline that need data, one of `evenstep.strategy.mesh.STAGES`. By
                default all of them at WORLD, else the first, for tokens, and the last, for labels.

        Raises:
            ConfigurationError: an unknown axis or kind of stages.
        """
        for axis in (dim, *more):
            check_one_of(AXES, broadcast_at=axis)
        if stages is not None:
            check_one_of(STAGES, stages=stages)
        # Does not change where samples go, so the cache is kept.
        return replace(self, _spec=replace(self._spec, broadcast_at=(dim, *more), stages=stages))

    def plan(self, subplans: Mapping[str, DGraph] | None = None) -> LoadingPlan:
        """The plan of the step.

        Args:
            subplans: by name, graphs of other modules, such as a vision encoder at WORLD. They plan
                the samples that this graph places, whether they were mixed or not; a sample without
                their modality is in none of their buckets.

        Raises:
            ConfigurationError: nothing was drawn or distributed, there are fewer samples than
                buckets, or a subplan is of other samples or has no room for them.
            SampleError: a sample has no length in this modality, or one over `max_tokens`; or its
                images, of a subplan that deals them one by one, were measured together.
        """
        if self._spec.one_by_one:
            raise ConfigurationError(
                "one_by_one is for subplans: of the plan itself, a sample is one row; give the "
                "graph to plan(subplans=...)"
            )
        plan, spec = self._placed, self._spec
        placed = plan.assignment.placed
        made = {}
        for name, graph in (subplans or {}).items():
            sub, sample_rows = graph._as_subplan(name, self), None
            if sub._spec.one_by_one:
                sub, sample_rows = sub._of_units(name)
            rows = np.flatnonzero(placed if sample_rows is None else placed[sample_rows])
            made[name] = replace(sub._place(rows, subplan=name), sample_rows=sample_rows)
        fetched: dict[str, Any] = {"broadcast_at": spec.broadcast_at, "stages": spec.stages_needing}
        return replace(plan, subplans=made, weights=dict(self._weights), **fetched)

    # Placement

    @property
    def assignment(self) -> Assignment:
        """Assignment of the samples as the main plan of a step; errors as `plan`."""
        return self._placed.assignment

    @property
    def _placed(self) -> LoadingPlan:
        """As the main plan of a step. Graphs that share it may say otherwise who fetches."""
        if not self._cache:
            if self.samples is None:
                raise ConfigurationError(
                    "no samples are drawn: call mix(schedule), or make the graph of a SampleTable"
                )
            self._cache.append(self._place(np.arange(len(self.samples)), subplan=None))
        return self._cache[0]

    def _place(self, rows: Int64Array, *, subplan: str | None) -> LoadingPlan:
        assert self.samples is not None
        job, spec, main = self._step, self._spec, subplan is None
        return place_samples(
            self.samples,
            rows,
            spec,
            micro_batches=spec.balancing.micro_batches or (job.micro_batches if main else 1),
            max_tokens=spec.balancing.max_tokens or (job.max_tokens if main else None),
            subplan=subplan,
            step=self.step,
            tree=self.tree,
            carried_in=0 if spec.one_by_one or job.carried is None else len(job.carried),
        )

    def _as_subplan(self, name: str, main: DGraph) -> DGraph:
        """This graph, as a subplan over the samples of the main graph."""
        if self._step is not main._step:
            raise ConfigurationError(
                f"subplan {name!r} is of another graph; derive it from the graph that is planned"
            )
        if self._mixed and self.samples is not main.samples and self.samples != main.samples:
            raise ConfigurationError(
                f"subplan {name!r} was mixed from other samples; give it the same schedule, or "
                "leave mix out: it plans the samples that this plan draws"
            )
        return replace(self, samples=main.samples)

    def _of_units(self, name: str) -> tuple[DGraph, Int64Array]:
        """This graph over the units of its samples; and [units] the sample of each."""
        assert self.samples is not None
        modality = bound_for(self._spec.modality, self.samples)
        if len(modality) > 1:
            raise ConfigurationError(
                f"subplan {name!r} deals {'+'.join(modality)} one by one; name one modality, since "
                "images of one have no counterpart in the other"
            )
        table, rows = self.samples.one_by_one(modality[0])
        return replace(self, samples=table), rows

    def _with(self, **changes: Any) -> DGraph:
        return replace(self, _spec=replace(self._spec, **changes), _cache=[])


def _behind(carried: SampleTable | None, drawn: SampleTable) -> SampleTable:
    return drawn if carried is None else SampleTable.concatenate([carried, drawn])
