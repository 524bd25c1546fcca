"""Options of a `Job`: what a step draws, what is measured, what memory holds; and its `Mesh`.

The trainer's mesh is made from sizes or from torch's DeviceMesh.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.mixture import LengthCurriculum, Schedule
from evenstep.plan.label_reading import READINGS
from evenstep.plan.value_checks import check_at_least, check_given, check_one_of
from evenstep.service.job.sample_measure import MODALITIES, SUPERVISED
from evenstep.strategy.mesh import AXES, ClientPlaceTree

_REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True, kw_only=True, eq=False)
class DrawOptions:
    """What a step draws from the sources. Checked by the `Job` that has them.

    Args:
        samples_per_step: samples that all ranks together draw in a step; under a policy, which
            plans steps of its own, in each draw.
        tokens_per_step: instead: as many samples as fit into that many tokens. If neither is given,
            nine tenths of what the micro-batches of all data-parallel ranks hold.
        by: what weights count: "samples" or "tokens".
        stop: when the mixture ends; see `evenstep.mixture.mixture_options`.
        schedule: weights of sources by step; None uses each source's own weight.
        curriculum: by step, the longest sample that may be drawn; None admits all.
    """

    samples_per_step: int | None = None
    tokens_per_step: int | None = None
    by: str = "samples"
    stop: str = "repeat"
    schedule: Schedule | Mapping[str, float] | Callable[[int], Mapping[str, float]] | None = None
    curriculum: LengthCurriculum | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasureOptions:
    """What is measured of a sample, and how the trainer's loss uses it.

    Args:
        modalities: by name, from a sample to its length in the modality, 0 if it has none of it;
            or to a list of the lengths of its parts, such as the patches of each image
            (`evenstep.batch.patches_of_each`), which a subplan may deal one by one.
        counted: modalities whose lengths add up to a sample's tokens, by which samples are drawn;
            by default "text" if the job has it, and otherwise the first.
        supervised: from a sample to its supervised tokens; None counts labels, as the collate
            function will leave them.
        labels: how the model reads labels: "causal" if it shifts them inside, so that the first
            one of a sample never counts, or "every"; see `evenstep.plan.label_reading`. None is
            "causal", unless the collate function is a `PackCollator` that keeps first labels.
        loss_reduction: how the trainer's loss reduces the supervised tokens of a micro-batch:
            "mean" or "sum".

    Raises:
        ConfigurationError: a value is not possible.
    """

    modalities: Mapping[str, Callable[[Any], int | Sequence[int]]] = field(
        default_factory=lambda: dict(MODALITIES)
    )
    counted: Sequence[str] = ()
    supervised: Callable[[Any], int] | None = None
    labels: str | None = None
    loss_reduction: str = "mean"

    def __post_init__(self) -> None:
        check_one_of(_REDUCTIONS, loss_reduction=self.loss_reduction)
        if self.labels is not None:
            check_one_of(READINGS, labels=self.labels)
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


@dataclass(frozen=True, kw_only=True)
class ServiceMemory:
    """What roles prepare ahead, and what they keep.

    Args:
        prefetch: steps that each client requests beyond the one that it trains on.
        buffer_size: samples of each source that a loader prepares ahead at most, if `buffer_bytes`
            allows: for 4 steps at first, and for one more after every 32.
        buffer_bytes: bytes of prepared samples that each loader holds, beside those that wait for a
            constructor. Sources share them by what is drawn; each holds at least what a step takes
            of it.
        decoded_bytes: bytes of decoded Parquet rows that each loader's process holds; with
            ``backend="local"`` it is `evenstep.data.parquet.DECODED.limit` of this process.
        workers: processes of each loader that transform samples; 0 transforms in the loader.
        plans_kept: steps whose plans stay in the planner's memory, for clients that ask again and
            for checkpoints. A trainer that is so far ahead of another waits for it.

    Raises:
        ConfigurationError: a value is not possible.
    """

    prefetch: int = 2
    buffer_size: int = 256
    buffer_bytes: int = 256 << 20
    decoded_bytes: int = 128 << 20
    workers: int = 0
    plans_kept: int = 64

    def __post_init__(self) -> None:
        names = ("buffer_size", "buffer_bytes", "decoded_bytes")
        sizes = {name: getattr(self, name) for name in names}
        check_given(prefetch=self.prefetch, **sizes)
        check_at_least(1, **sizes, plans_kept=self.plans_kept)
        check_at_least(0, prefetch=self.prefetch, workers=self.workers)


def Mesh(**sizes: int) -> ClientPlaceTree:
    """``Mesh(PP=2, DP=4, CP=2, TP=1)``: the number of ranks along each axis, 1 if left out.

    Raises:
        ConfigurationError: an unknown axis, or a size below 1.
    """
    known = {axis: sizes[axis] for axis in AXES if axis in sizes}
    return ClientPlaceTree.of({**known, **sizes})


def mesh_of(given: Any) -> ClientPlaceTree:
    """A tree, a mapping of sizes or torch's DeviceMesh, as a tree.

    Raises:
        ConfigurationError: the value is of another type.
    """
    if isinstance(given, ClientPlaceTree):
        return given
    if isinstance(given, Mapping):
        return Mesh(**given)
    if hasattr(given, "mesh_dim_names"):
        return ClientPlaceTree.of_mesh(given)
    raise ConfigurationError(
        f"mesh is a {type(given).__name__}; give evenstep.service.Mesh(DP=4, ...), or a DeviceMesh"
    )
