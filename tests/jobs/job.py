"""`Job`: everything that a drawn job is made of, as one line of Python."""

from __future__ import annotations

from dataclasses import dataclass, fields

import evenstep
from jobs.kinds import KINDS

POLICIES = {
    "even": lambda unit: evenstep.Even(40 * unit),
    "even, packed": lambda unit: evenstep.Even(40 * unit, packed=True),
    "token budget": lambda unit: evenstep.TokenBudget(40 * unit),
    "fixed batch": lambda unit: evenstep.FixedBatch(4),
    "pool sort": lambda unit: evenstep.PoolSort(4),
    "sequence packing": lambda unit: evenstep.SequencePacking(40 * unit),
    "workload packing": lambda unit: evenstep.WorkloadPacking(
        32 * unit, micro_batches=2, max_tokens=40 * unit
    ),
}
PACKED = {"even, packed", "sequence packing", "workload packing"}
UPDATES = {
    "one step": {},
    "three steps": {"accumulate": 3},
    "tokens": {"update_tokens": 90},
    "auto": {"update_tokens": "auto"},
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """Its representation is the call that makes it again."""

    kind: str
    """Of model: a key of `KINDS`."""
    labels: str
    """Which of the kind's styles of labels the data has."""
    told: bool
    """Whether the loader is told how the model reads labels."""
    form: str
    """What a sample is: "dict", "encoding", "tuple", "bare", "row"."""
    values: str
    """What holds its numbers: "tensors", "lists" or "arrays"."""
    mask: str
    """Its attention mask: "none", "ones", or of padding "right" or "left"."""
    label: str
    """The name of the field of labels."""
    data: str
    """What holds the samples: "list", "map" or "iterable"."""
    policy: str
    collate: str
    call: str
    """What the loop gives the model: "batch", or "converted" by `to_hugging_face`."""
    entry: str
    """"loader", "wrap" or "trainer"."""
    update: str
    resumed: bool
    """Whether another loader goes on after the first update, from the state of this one."""
    ranks: int
    workers: int
    shuffle: bool
    seed: int
    """Of the data's numbers."""

    @property
    def reads(self) -> str:
        """Which labels the loss reads, as ``labels=`` of the loader says it."""
        return "every" if self.labels == "shifted" else KINDS[self.kind].reads

    @property
    def packed(self) -> bool:
        return self.policy in PACKED

    def __str__(self) -> str:
        given = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"Job({given})"
