"""The figures of a simulated epoch, each defined in its docstring."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from evenstep.arrays import Float64Array


@dataclass(frozen=True, kw_only=True)
class SimulationResult:
    """The figures of one epoch under a policy. Fractions are fractions, not percent.

    Samples and tokens are summed over ranks. A filler step costs nothing and holds no sample. An
    epoch without steps has padding and efficiency 0 and imbalance 1.
    """

    policy: str
    world_size: int
    samples: int
    """Different samples in the epoch. Those that the sampler repeated count in `emitted` only."""
    steps: int
    rounds: int
    padding: float
    """1 - real tokens / tokens as computed."""
    imbalance: float
    """Sum over steps of the largest rank's cost, over the sum of the mean cost. Where a step has
    several micro-batches, of those of all ranks together."""
    imbalance_arriving: float
    """The same of the steps that were planned before any rank had received its last sample."""
    imbalance_p95: float
    """95th percentile over steps of largest over mean cost."""
    efficiency: float
    """Useful cost / (ranks x sum of the largest rank's cost), likewise. Useful is
    the cost of each sample by itself, without padding."""
    samples_per_step: float
    tokens_per_step: float
    """Real tokens."""
    composition: float
    """Variance of length within updates over that of random updates of the same samples: see
    `evenstep.Composition`. An update is ``accumulate`` steps."""
    samples_per_update: float
    tokens_per_update: float
    """Real tokens, on all ranks together."""
    tokens_per_update_cv: float
    """Standard deviation over mean of the real tokens of an update."""
    emitted: int
    missing: int
    """Identities that no rank emitted."""
    duplicates: int
    """Emissions of an identity beyond the number of times it was given to the ranks."""
    sampler_padding: int
    """Samples repeated so that all ranks have equally many."""
    dropped: int
    """Samples that the policy dropped."""
    undelivered: int
    """Samples left when the epoch stopped, under ``exhausted="stop"``."""
    filler_steps: int
    """Steps for which a rank had no samples left, summed over ranks."""
    max_delay_steps: int
    """Most steps that a sample waited: the index of the step that emitted it, less the steps
    planned before it entered its rank's window."""
    mean_delay_steps: float
    """The same for a token, on average."""
    plan_us_per_sample: float
    """Microseconds of processor time one rank spends in the policy, per sample it emits."""
    message_bytes_per_round: float
    """Bytes that one rank sends in one round, on average; without the hello of the epoch."""
    costs: Float64Array = field(repr=False, compare=False)
    """[steps, ranks x micro-batches] cost of every group; 0 for a filler."""
    text_imbalance: float | None = None
    """`imbalance` of the language model's part of the cost; None for a cost of one part, as is the
    next field."""
    vision_imbalance: float | None = None
    """`imbalance` of the vision tower's part: see `evenstep.VisionLanguageCost`."""
    patches: int | None = None
    """None if it is not known which samples have images, as are the next two fields."""
    images: int | None = None
    steps_mixed: int | None = None
    """Steps in which some ranks have an image and others have none."""
    vision_costs: Float64Array | None = field(default=None, repr=False, compare=False)
    """[steps, ranks] the vision tower's part of `costs`; None for a cost of one part."""

    def as_dict(self) -> dict[str, Any]:
        """All figures except the arrays, as text and numbers."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        del values["costs"], values["vision_costs"]
        return {name: value for name, value in values.items() if value is not None}
